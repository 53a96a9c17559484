"""Where those who look find the API server: by flags, or as kubectl does; and they are told which it was."""

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.fakes.apistore import ApiStore
from tests.fakes.kubeconfig import write_kubeconfig
from tests.fakes.objects import service
from tests.proxy.unit.inspected import example, make_config

from vipwire.cli.main import main
from vipwire.config.configuration import Config
from vipwire.config.flags import build_config, parse_flags
from vipwire.errors import ConfigError
from vipwire.inspect.node.source import list_once, make_source
from vipwire.kube.access.kubectl import KubeconfigFiles, find_kubectl_files


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be at home where nothing is, and in no Pod."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIPWIRE_DATA_DIR", str(tmp_path / "lib"))
    return tmp_path


def config_of(*flags: str) -> Config:
    return build_config(parse_flags(flags)).config


def test_the_variable_counts_before_the_file_at_home(home: Path) -> None:
    assert find_kubectl_files({"HOME": str(home)}) is None
    own = write_kubeconfig(home / ".kube/config")
    assert find_kubectl_files({"HOME": str(home), "KUBECONFIG": ""}) == KubeconfigFiles((own,), "as kubectl does")
    other = write_kubeconfig(home / "other")
    assert find_kubectl_files({"HOME": str(home), "KUBECONFIG": str(other)}) == KubeconfigFiles(
        (other,), "$KUBECONFIG"
    )


def test_files_of_the_variable_that_are_not_there_are_passed_over(home: Path) -> None:
    one, two = write_kubeconfig(home / "one"), home / "two"
    environ = {"KUBECONFIG": f"{two}:{one}:"}
    assert find_kubectl_files(environ) == KubeconfigFiles((one,), "$KUBECONFIG")
    write_kubeconfig(two)
    assert find_kubectl_files(environ) == KubeconfigFiles((two, one), "$KUBECONFIG")
    with pytest.raises(
        ConfigError,
        match=(
            r"KUBECONFIG: no such file: /nowhere/x; unset the variable, or name "
            r"another"
        ),
    ):
        find_kubectl_files({"KUBECONFIG": "/nowhere/x"})


async def test_the_objects_are_those_of_the_server_that_the_variable_leads_to(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ApiStore()
    store.put("services", service(1))

    async with FakeApiServer(store) as server:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(home / "by-variable", server.url)))
        found = await asyncio.to_thread(lambda: list_once(make_source(config_of())))
        (url, services) = server.url, len(found.services)
    assert services == 1
    assert capsys.readouterr().err == f"note: asking {url}, which {home}/by-variable names ($KUBECONFIG)\n"


def test_what_the_flags_name_counts_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write_kubeconfig(home / "given")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    for flag in (f"--kubeconfig={given}", "--master=http://192.0.2.1:8080", f"--manifests={home}"):
        make_source(config_of(flag))
    assert capsys.readouterr().err == ""


def test_where_nothing_else_leads_to_a_server_it_is_this_machines(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write_kubeconfig(home / "lib/admin.kubeconfig")
    make_source(config_of())
    assert capsys.readouterr().err == f"note: asking http://192.0.2.1:8080, which {own} names (of this machine)\n"
    write_kubeconfig(home / ".kube/config", "http://192.0.2.2:8080")
    make_source(config_of())
    assert "note: asking http://192.0.2.2:8080, " in capsys.readouterr().err


def test_where_nothing_leads_to_a_server_all_ways_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no API server: set --kubeconfig .*no ~/\.kube/config") as caught:
        make_source(config_of())
    assert "$KUBECONFIG is not set" in str(caught.value)


def test_a_server_that_is_away_is_told_at_once_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        list_once(make_source(config_of(f"--master=https://127.0.0.1:{port}")))
    assert str(caught.value) == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("command", "status"),
    [
        *((("plan",), 1), (("diff",), 2), (("explain", "web"), 2), (("top", "--count=1"), 1)),
        *((("drain", "10.0.0.1"), 1), (("trace", "web"), 1)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_every_command_that_looks_says_so_in_one_line(tmp_path: Path, command: tuple[str, ...], status: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    flags = [f"--master=https://127.0.0.1:{port}", f"--state-dir={tmp_path}", "--nodeport-addresses=primary"]
    said = CliRunner().invoke(main, [*command, *flags])
    assert (said.exit_code, said.stdout) == (status, ""), said.stderr
    assert said.stderr == f"error: cannot connect to 127.0.0.1:{port}: Connection refused\n"


@pytest.mark.parametrize("words", [("explain", "10.96.0.10"), ("explain", ":80"), ("trace", "10.96.0.10:99999")])
def test_a_wrong_destination_is_told_before_the_server_is_asked(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(main, [*words, "--master=https://127.0.0.1:1"])
    assert "not a destination" in said.stderr or "not a port" in said.stderr
    assert "connect" not in said.stderr


def test_status_shows_the_kernel_and_the_proxy_without_the_objects(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    flags = [f"--master=https://127.0.0.1:{port}", f"--state-dir={tmp_path}", "--nodeport-addresses=primary"]
    said = CliRunner().invoke(main, ["status", "-o", "json", *flags])
    assert (said.exit_code, said.stderr) == (1, f"error: cannot connect to 127.0.0.1:{port}: Connection refused\n")
    document = json.loads(said.stdout)
    (silent,) = document["silent"]
    assert (silent["part"], silent["since"]) == ("objects", None)
    assert {family["state"] for family in document["families"]} == {"unknown"}
    table = CliRunner().invoke(main, ["status", *flags])
    assert "objects: unknown\n" in table.stdout
    assert "There are no Services" not in table.stdout


def test_a_name_that_nobody_knows_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^cannot connect to api\.invalid:6443: [^<>\n]+$"):
        list_once(make_source(config_of("--master=https://api.invalid:6443")))


async def test_what_alone_may_not_be_listed_is_named() -> None:
    store = ApiStore()
    async with FakeApiServer(store) as server:
        server.fail("nodes", Fault(403, times=9))
        source = make_source(config_of(f"--master={server.url}"))
        with pytest.raises(ConfigError) as caught:
            await asyncio.to_thread(lambda: list_once(source))
        assert "403" in str(caught.value)


def test_a_node_that_does_not_exist_is_told(tmp_path: Path) -> None:
    make_config(tmp_path, example())
    flags = [f"--manifests={tmp_path}", f"--state-dir={tmp_path}", "--nodeport-addresses=primary"]
    said = CliRunner().invoke(main, ["status", *flags, "--hostname-override=node1"]).stdout
    assert "there is no Node 'node1': all endpoints count as remote" in said
    assert "did you mean 'node-1'?" in " ".join(said.split())
    assert "no Node" not in CliRunner().invoke(main, ["status", *flags, "--hostname-override=node-1"]).stdout


def test_a_data_directory_leads_to_its_api_server_as_for_expose(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    write_kubeconfig(home / "data/admin.kubeconfig", f"http://127.0.0.1:{port}")
    for command in (["plan"], ["expose", "web", "--port=80", "--to=10.0.0.1:80"]):
        said = CliRunner().invoke(main, [*command, f"--data-dir={home}/data"])
        assert (said.exit_code, said.stdout) == (1, "")
        assert f"cannot connect to 127.0.0.1:{port}: Connection refused" in said.stderr
