"""What an operator can cause is one line and exit code 1, on Debian's own Python, too: it makes groups of exceptions
where later ones do not. Run by /usr/bin/python3 with this tree's sources and packages, in a network namespace each.
"""

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

import vipwire

DEBIANS = "/usr/bin/python3"
SOURCES = Path(vipwire.__file__).parents[1]
TAKEN = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    held = socket.socket(socket.AF_INET, kind)
    held.bind(("127.0.0.1", 53))
    held.listen() if kind == socket.SOCK_STREAM else None
    os.set_inheritable(held.detach(), True)
os.execvp(sys.argv[1], sys.argv[1:])
"""
UP = ("up", "--secure-port", "0", "--data-dir", "data")
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
CASES = {
    "up, port 53": ((), (*UP, "--no-proxy"), "cannot listen on 127.0.0.1 port 53: Address already in use"),
    "dns, port 53": (
        (),
        ("dns", "--manifests", ".", "--bind-address", "127.0.0.1"),
        "cannot listen on 127.0.0.1 port 53: Address already in use",
    ),
    "up, no interface": (
        (),
        (*UP, "--no-proxy", "--no-dns", "--announce-interface", "nope"),
        "--announce-interface nope: no interface with this name",
    ),
    "up, no rights": (WITHOUT_RIGHTS, (*UP, "--no-dns"), "vipwire up needs the capability CAP_NET_ADMIN"),
    "proxy, no rights": (
        WITHOUT_RIGHTS,
        ("proxy", "--manifests", "."),
        "vipwire proxy needs the capability CAP_NET_ADMIN",
    ),
    "join, no rights": (
        WITHOUT_RIGHTS,
        ("join", "https://192.0.2.1", "--token", "a", "--ca-hash", "b", "--data-dir", "data"),
        "vipwire join needs the capability CAP_NET_ADMIN",
    ),
    "up, no such address": (
        (),
        (*UP, "--no-proxy", "--no-dns", "--bind-address", "192.0.2.77"),
        "--bind-address 192.0.2.77 --secure-port 0: Cannot assign requested address",
    ),
    "up, no folder": (
        (),
        ("up", "--no-proxy", "--no-dns", "--data-dir", "/proc/nope"),
        "--data-dir /proc/nope: No such file or directory",
    ),
    "ingress, no kubeconfig": ((), ("ingress", "--kubeconfig", "/nope"), "--kubeconfig: cannot read /nope"),
    "ingress, no folder": ((), ("ingress", "--manifests", ".", "--run-dir", "/proc/nope"), "--run-dir /proc/nope: "),
    "ingress, long folder": (
        (),
        ("ingress", "--manifests", ".", "--run-dir", f"/run/{'x' * 78}"),
        "--run-dir: 83 bytes",
    ),
}
pytestmark = [
    pytest.mark.attack,
    pytest.mark.kernel,
    pytest.mark.slow,
    pytest.mark.skipif(not Path(DEBIANS).exists(), reason="there is no /usr/bin/python3"),
]


def version() -> str:
    """Tell the version of Debian's Python, as far as packages are built for it."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([DEBIANS, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("case", CASES)
def test_an_operators_error_is_one_line(tmp_path: Path, case: str) -> None:
    if version() != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip("the packages here are built for another version")
    before, arguments, wanted = CASES[case]
    path = os.pathsep.join(map(str, (SOURCES, *site.getsitepackages())))
    command = ["unshare", "--net", DEBIANS, "-c", TAKEN, *before, DEBIANS, "-m", "vipwire", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert lines[0].startswith(("error: ", "Error: "))
    assert wanted in lines[0]
    assert done.stdout == "", "nothing is said to be ready that is not"
