"""The sockets inside HAProxy: another user of the machine cannot connect, and copies lead to their pools alone."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.ports import free_port
from tests.l7.gateway.site import BASE, service, tls_secret
from tests.l7.gateway.test_gateway_daemon import code, running, until
from tests.l7.gateway.test_gateway_load import ALL, children

NOBODY = 65534
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
LISTENS = 0x10000
"""__SO_ACCEPTCON in the column Flags of /proc/net/unix."""
OBJECTS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: http, port: HTTP, protocol: HTTP}
  - {name: https, port: TLS, protocol: HTTPS, hostname: a.org, tls: {certificateRefs: [{name: a}]}}
  - {name: passed, port: TLS, protocol: TLS, hostname: b.org, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: edge, namespace: infra}
spec:
  parentRefs: [{name: edge}]
  hostnames: [a.org]
  rules: [{filters: [MIRROR], backendRefs: [{name: web, port: 8080}]}]
---
apiVersion: vipwire.io/v1
kind: TrafficPolicy
metadata: {name: edge, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: edge}]
  denySources: [192.0.2.0/24]
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[int]]]:
    """Run a gateway whose HAProxy has workers of another user, if there is one; give all its processes."""
    folder, http = tmp_path_factory.mktemp("sockets"), free_port()
    (folder / "manifests").mkdir()
    text = OBJECTS.replace("HTTP,", f"{http},", 1).replace("TLS,", f"{free_port()},", 2).replace("MIRROR", ALL)
    pods = [service(name, "127.0.0.76", free_port()) for name in ("web", "copies")]
    made = [BASE, text, tls_secret("a", "a.org"), *pods]
    (folder / "manifests" / "all.yaml").write_text("\n---\n".join(made))
    folder.chmod(0o755)
    (folder / "run").mkdir(mode=0o755)
    with running(folder, "--manifests", str(folder / "manifests")) as process:
        until(lambda: code(http, "a.org") == "503", folder)
        (master,) = children(process.pid)
        yield folder / "run", [process.pid, master, *children(master)]


def listening(pids: list[int]) -> set[str]:
    """Name the sockets of processes that programs of this machine may connect to: abstract ones begin with @."""
    inodes = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            if (target := str(file.readlink())).startswith("socket:["):
                inodes.add(target[8:-1])
    lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {line[7] for line in lines if len(line) > 7 and line[6] in inodes and int(line[3], 16) & LISTENS}


def test_only_haproxys_own_user_can_connect_to_it(processes: tuple[Path, list[int]]) -> None:
    run, (_, *haproxy) = processes
    found = listening(haproxy)
    assert run.stat().st_mode & 0o777 == 0o700
    assert len(found) >= 4  # its own, the master's, that of copies, that of the listener that ends TLS
    for path in found:
        assert path.startswith(f"{run}/")
        path = re.sub(r"\.\d+\.tmp$", "", path)  # noqa: PLW2901  # HAProxy binds, then renames
        assert Path(path).stat().st_mode & 0o077 == 0
        command = ("setpriv", f"--reuid={NOBODY}", "--clear-groups", sys.executable, "-c", CONNECT, path)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr


@pytest.mark.parametrize(("pool", "status"), [("guarded", b"404"), ("infra:copies:8080", b"503"), ("none", b"404")])
def test_copies_lead_to_their_own_pools_alone(processes: tuple[Path, list[int]], pool: str, status: bytes) -> None:
    """503 is what a pool answers whose only endpoint is not there; 404 is what leads to none."""
    run, _ = processes
    name = next(
        line.split()[1]
        for line in (run / "haproxy.cfg").read_text().splitlines()
        if line.startswith("backend infra:web:8080")
    )
    (path,) = run.glob("**/mirrors")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        wanted = name if pool == "guarded" else pool
        connection.sendall(f"GET / HTTP/1.1\r\nhost: a.org\r\nx-vipwire-mirror: {wanted}\r\n\r\n".encode())
        assert connection.recv(100).split()[1] == status
