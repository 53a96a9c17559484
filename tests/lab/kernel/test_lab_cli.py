"""`vipwire lab` as a person uses it."""

import json
import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from vipwire_lab.cli import lab as command
from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.namespaces import netns

pytestmark = pytest.mark.kernel


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    name = f"cli{os.getpid()}-{secrets.token_hex(2)}"
    result = invoke("up", "--name", name, "--pods", "2")
    assert result.exit_code == 0, result.output
    assert "pod-1b" in result.output
    yield name
    result = invoke("down", "--name", name)
    assert result.output == f"The lab {name} is down.\n"
    assert not [path for path in netns.DIRECTORY.iterdir() if name in path.name]
    assert invoke("down", "--name", name).output == f"No lab named {name} is up.\n"


def test_probe_prints_a_table_with_who_answered(name: str) -> None:
    result = invoke("probe", "-l", name, "client", "10.244.1.11:80", "-n", "5")
    assert result.exit_code == 0
    for word in ("client to 10.244.1.11:80/tcp", "5", "answered", "pod-1a", "203.0.113.2"):
        assert word in result.output


def test_probe_prints_json_and_fails_unless_all_were_answered(name: str) -> None:
    result = invoke("probe", "-l", name, "pod-1a", "[fd00:10:244:1::12]:8080/udp", "-o", "json", "-n", "2")
    assert result.exit_code == 0
    assert [each["answer"]["pod"] for each in json.loads(result.output)] == ["pod-1b"] * 2
    result = invoke("probe", "-l", name, "client", "10.244.1.11:9", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.output)[0]["outcome"] == "refused"


def test_show_prints_the_hosts(name: str) -> None:
    assert f"vipwire-{name}-pod-1b" in invoke("show", "-l", name).output
    shown = json.loads(invoke("show", "-l", name, "-o", "json").output)
    assert shown["name"] == name
    assert [pod["name"] for pod in shown["pods"]] == ["pod-1a", "pod-1b"]


def test_manifests_are_kubernetes_objects(name: str) -> None:
    objects = list(yaml.safe_load_all(invoke("manifests", "-l", name).output))
    assert [each["kind"] for each in objects] == ["Node", "Service", "EndpointSlice", "EndpointSlice"]


def test_exec_runs_a_command_in_the_network_of_a_host(name: str) -> None:
    program = "from vipwire_lab.cli import lab; lab()"
    argv = [sys.executable, "-c", program, "exec", "-l", name, "client", "--", "ip", "-o", "addr", "show", "eth0"]
    assert "203.0.113.2/32" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    inode = Lab.attach(name).namespace_of("client").stat().st_ino
    assert inode != Path("/proc/self/ns/net").stat().st_ino


def test_exec_finds_this_program_where_the_caller_would_not(name: str) -> None:
    program = "from vipwire_lab.cli import lab; lab()"
    argv = [sys.executable, "-c", program, "exec", "-l", name, "client", "--", "vipwire", "--version"]
    said = subprocess.run(argv, env={"PATH": "/usr/bin"}, capture_output=True, text=True, check=True).stdout
    assert said.startswith("vipwire")


def test_three_machines_are_on_one_ethernet_with_the_addresses_of_the_walk() -> None:
    name = f"lan{os.getpid()}-{secrets.token_hex(2)}"
    try:
        result = invoke("up", "--name", name, "--machines", "3")
        assert result.exit_code == 0, result.output
        built = Lab.attach(name)
        for number in (1, 2, 3):
            shown = built.run(f"node-{number}", ["ip", "-br", "-4", "addr", "show", "lan0"]).stdout
            assert f"10.0.0.{number}/24" in shown
        said = built.run("node-1", ["bash", "-c", "echo > /dev/tcp/10.0.0.3/9"], check=False).stderr
        assert "Connection refused" in said  # there is somebody
    finally:
        invoke("down", "--name", name)


def test_the_page_of_a_node_ends_with_the_command_that_shows_it(name: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "vipwire", "lab", "view", "-l", name, "--port=0"]
    quiet = os.environ | {"VIPWIRE_FLAGS": f"--manifests={tmp_path}"}  # it would end as it complains of its source
    with subprocess.Popen(argv, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Serving at http://127.0.0.1:")
            (page,) = (path for path in state.directory_of(name).glob("*.pid") if "view" in command_of(path.stem))
            descriptor = os.pidfd_open(int(page.stem))
        finally:
            process.kill()  # it cannot clean up
    ended, _, _ = select.select([descriptor], [], [], 30.0)
    os.close(descriptor)
    assert ended, f"a page is left: {page}"


def command_of(pid: str) -> list[str]:
    """Read the arguments of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("probe", "clinet", "10.244.1.11:80"), "no host 'clinet': did you mean client?"),
        (("probe", "client", "fd00::1:80"), "needs brackets"),
        (("probe", "client", "10.244.1.11:80", "-n", "0"), "count is 0"),
        (("exec", "client", "no-such-command"), "there is no command 'no-such-command'"),
        (("up",), "is already up"),
        (("up", "--pods", "many"), "write numbers from 0 to 26"),
    ],
)
def test_what_is_wrong_is_said_plainly(name: str, arguments: tuple[str, ...], complaint: str) -> None:
    result = invoke(arguments[0], "-l", name, *arguments[1:])
    assert result.exit_code != 0
    assert complaint in result.output
    assert "Traceback" not in result.output


def test_a_lab_that_is_not_up_is_not_found() -> None:
    result = invoke("show", "-l", "no-such-lab")
    assert result.exit_code == 1
    assert "no lab named no-such-lab is up" in result.output
    assert "cannot name a lab" in invoke("show", "-l", "../etc").output
