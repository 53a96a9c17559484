"""A start of the proxy imports what its first sync needs, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

PACKAGES = {"httptools", "msgspec", "prometheus_client", "typing_extensions", "vipwire"}
"""What a start may import beside the standard library."""
LATER = {
    *("cProfile", "ctypes", "difflib", "email", "fractions", "hashlib", "http.client", "http.server"),
    *("multiprocessing", "pstats", "random", "shlex", "urllib.request", "wsgiref.simple_server"),
}
"""Heavy parts of the standard library that a start has no use for."""
LATER_OF_OURS = (
    "cli.main",
    "proxy_daemon.cleanup",
    "proxy_daemon.handover.leftovers",
    "modes.xtables",
    "modes.iptables",
    "modes.ipvs",
    "modes.userspace",
    "modes.ebpf",
    "plan.resolve",
    "linux.netlink.conntrack",
    "linux.conntrack.flows",
)
"""What waits until the first sync is over, or until somebody asks for it."""
COMPILED = 1
"""The most dataclasses that a start may define: Python compiles each anew, for half a millisecond. It is Wishes."""
MODULES = 163
"""The most modules of ours. A new one belongs after the first sync; one that does not takes the place of another."""
_PROGRAM = """
import sys
before = set(sys.modules)
import dataclasses, json
found, process = [], dataclasses._process_class
dataclasses._process_class = lambda cls, *rest: found.append(cls) or process(cls, *rest)
from vipwire.cli.start import cyclic_garbage, install_lean_prometheus
cyclic_garbage.limit_heap()
install_lean_prometheus()
from vipwire.cli.proxy import build_config, parse_given_flags
config, _ = build_config(parse_given_flags(["--master=http://127.0.0.1:1", "--cluster-cidr=10.244.0.0/16"]))
from vipwire.proxy_daemon import run
import vipwire.modes.nftables.driver
from vipwire.modes.nftables.kernel import NftablesBackend
with run.AddressWatch(run.VIP_DEVICES) as addresses:
    modes = {family: NftablesBackend(family) for family in run.find_usable_families()}
    run.Proxy(config, modes, addresses, run.open_record(sys.argv[1]), run.find_access(config))
print(json.dumps([sorted(sys.modules.keys() - before), len(found)]))
"""


def test_a_start_imports_what_the_first_sync_needs_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    modules, compiled = json.loads(done.stdout)
    packages = {name.partition(".")[0] for name in modules if "cython" not in name} - sys.stdlib_module_names
    assert packages <= PACKAGES
    assert not LATER & set(modules)
    assert not {name for name in modules if name.startswith(tuple(f"vipwire.{each}" for each in LATER_OF_OURS))}
    assert compiled <= COMPILED
    assert len([name for name in modules if name.startswith("vipwire")]) <= MODULES


_LATE_NAME = """
from vipwire.cli.start import install_lean_prometheus
install_lean_prometheus()
import sys
from prometheus_client.registry import CollectorRegistry
assert "http.server" not in sys.modules
import prometheus_client
assert prometheus_client.CollectorRegistry is CollectorRegistry
from prometheus_client import generate_latest
assert generate_latest(CollectorRegistry()) == b""
install_lean_prometheus()
assert sys.modules["prometheus_client"].generate_latest is generate_latest
"""


def test_names_of_the_package_that_was_put_up_without_its_code_are_there_all_the_same() -> None:
    subprocess.run([sys.executable, "-c", _LATE_NAME], check=True)


def test_what_the_proxy_says_of_itself_is_what_every_command_says() -> None:
    command = [sys.executable, "-m", "vipwire", "proxy"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("vipwire ")
    assert (
        "\nUsage:\n  vipwire proxy [flags]\n"
        in subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    )
    wrong = subprocess.run([*command, "--nonsense"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "error: unknown flag: --nonsense\n")
