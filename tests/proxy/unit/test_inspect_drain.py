"""What `vipwire drain` decides and says, without a kernel."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.proxy.unit.inspected import HTTP, PODS, make_config

from vipwire.cli.main import main
from vipwire.config.configuration import Config
from vipwire.errors import ConfigError
from vipwire.inspect.drain import read_drain, require_concerned
from vipwire.inspect.node.situation import Situation, plan_situation
from vipwire.inspect.node.source import list_once, make_source
from vipwire.model.net import parse_address
from vipwire.model.node import Drain
from vipwire.proxy_daemon.drains import drains_path, read_orders
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.namespaces.topology import DEFAULT

ONE, TWO = "10.244.1.11", "10.244.2.11"


def config(tmp_path: Path) -> Config:
    (tmp_path / "objects").mkdir()
    pods = [PODS["pod-1a"], PODS["pod-2a"]]
    objects = [
        *manifests.build_service_with_slices(DEFAULT, "web", ["10.96.0.10"], [HTTP], pods, type="NodePort"),
        *manifests.build_service_with_slices(DEFAULT, "dns", ["10.96.0.11"], [Port(53)], [PODS["pod-1a"]]),
    ]
    return make_config(tmp_path / "objects", objects, f"--state-dir={tmp_path / 'state'}")


@pytest.fixture
def made(tmp_path: Path) -> Config:
    return config(tmp_path)


@pytest.fixture
def situation(made: Config) -> Situation:
    return plan_situation(made, list_once(make_source(made)))


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        (ONE, ONE, None),
        (f"{ONE}:8080", ONE, 8080),
        ("fd00:10:244:1::11", "fd00:10:244:1::11", None),
        ("[fd00:10:244:1::11]", "fd00:10:244:1::11", None),
        ("[fd00:10:244:1::11]:8080", "fd00:10:244:1::11", 8080),
    ],
)
def test_an_endpoint_is_an_address_with_or_without_a_port(
    situation: Situation, text: str, address: str, port: int | None
) -> None:
    assert read_drain(situation, text, "") == Drain(parse_address(address), port)


@pytest.mark.parametrize("text", ["web", "10.244.1", f"{ONE}:0", f"{ONE}:http", f"{ONE}:70000", ":80"])
def test_what_is_no_endpoint_is_an_error_that_says_what_is(situation: Situation, text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an endpoint: write IP, IP:port or \[IPv6\]:port"):
        read_drain(situation, text, "")


def test_an_endpoint_that_is_not_there_says_what_is_near(situation: Situation) -> None:
    with pytest.raises(ConfigError, match=r"there is no endpoint 10\.244\.1\.12; near it: 10\.244\.1\.11"):
        require_concerned(situation, Drain(parse_address("10.244.1.12")))
    with pytest.raises(ConfigError, match=r"no endpoint 10\.244\.2\.11 of default/dns; near it: 10\.244\.1\.11"):
        require_concerned(situation, read_drain(situation, TWO, "dns"))
    with pytest.raises(ConfigError, match=r"there is no Service 'wep'; near it: web"):
        read_drain(situation, ONE, "wep")


def run(made: Config, *arguments: str) -> tuple[int, str]:
    flags = [f"--manifests={made.manifests[0]}", f"--state-dir={made.state_dir}", "--hostname-override=node-1"]
    result = CliRunner().invoke(main, ["drain", *arguments, *flags, "--nodeport-addresses=primary"])
    return result.exit_code, result.output


def test_what_leaves_a_service_without_endpoints_is_refused_and_nothing_is_written(made: Config) -> None:
    status, said = run(made, ONE)
    assert status == 1
    assert "error: default/dns would have no endpoints left for 10.96.0.11:53/tcp\n" in said
    assert "error: no endpoint was drained; to drain it nevertheless, use --force\n" in said
    assert read_orders(drains_path(made.state_dir, "node-1")) == ()


def test_undoing_what_was_not_done_says_what_is(made: Config) -> None:
    assert run(made, ONE, "--undo") == (1, f"error: {ONE} is not drained; no endpoint is\n")
    assert run(made, "--list") == (0, "no endpoint is drained on node-1\n")


@pytest.mark.parametrize(
    "arguments", [[], ["--list", ONE], [ONE, "--undo", "--timeout=1m"], [ONE, "--timeout=soon"], [ONE, "--timeout=0"]]
)
def test_contradictions_are_told(made: Config, arguments: list[str]) -> None:
    status, said = run(made, *arguments)
    assert status == 2
    assert "give an ENDPOINT, or --list without one" in said or "--timeout" in said
