"""The commands on a real kernel: what they say of a table that others have changed, and without rights."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.fakes.own_network import own_network, run
from tests.proxy.unit.inspected import example, make_config

from vipwire.cli.main import main
from vipwire.config.configuration import Config
from vipwire.inspect.node.situation import observe_situation, open_kernel
from vipwire.inspect.node.source import list_once, make_source

pytestmark = pytest.mark.kernel


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    make_config(tmp_path, example())
    return [
        f"--manifests={tmp_path}",
        f"--state-dir={tmp_path / 'state'}",  # no flags of a proxy that once ran in a namespace of this number
        "--hostname-override=node-1",
        "--cluster-cidr=10.244.0.0/16",
        "--nodeport-addresses=primary",
    ]


@pytest.fixture(autouse=True)
def _no_flags_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIPWIRE_FLAGS", raising=False)


@pytest.fixture
def network() -> Iterator[int]:
    with own_network() as namespace:
        run("ip addr add 192.168.0.1/24 dev lo")
        run("ip route add default dev lo")
        yield namespace


@pytest.fixture
def programmed(network: int, tmp_path: Path, flags: list[str]) -> list[str]:
    """Program the table in this namespace as planned."""
    del network
    program(make_config(tmp_path, example()))
    return flags


def program(config: Config) -> None:
    with open_kernel(config) as kernel:
        for side in observe_situation(config, list_once(make_source(config)), kernel).sides:
            assert side.mode is not None
            assert side.delta
            side.mode.commit(side.delta)


def vipwire(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="vipwire")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def as_json(*arguments: str) -> Any:
    return json.loads(vipwire(*arguments, "-o", "json").stdout)


@pytest.mark.parametrize("counting", ["--count-traffic", "--counters=none", "--counters=services"])
def test_what_the_proxy_counts_need_not_be_said(
    network: int, tmp_path: Path, flags: list[str], counting: str
) -> None:
    del network
    program(make_config(tmp_path, example(), counting))
    assert [family["state"] for family in as_json("status", *flags)["families"]] == ["as planned"] * 2
    assert vipwire("diff", *flags).exit_code == 0
    assert vipwire("diff", *flags, counting).exit_code == 0
    ports = [port["counts"] for service in as_json("status", *flags)["services"] for port in service["ports"]]
    assert all((counts is None) is (counting == "--counters=none") for counts in ports)


def test_what_is_said_to_be_counted_is_what_should_be(programmed: list[str]) -> None:
    assert vipwire("diff", *programmed, "--count-traffic").exit_code == 1
    assert vipwire("diff", *programmed, "--count-traffic=false").exit_code == 0
    assert vipwire("diff", *programmed, "--counters=none").exit_code == 1


def test_an_empty_kernel_is_not_programmed_and_the_script_is_what_nft_takes(network: int, flags: list[str]) -> None:
    del network
    assert [family["state"] for family in as_json("status", *flags)["families"]] == ["not programmed"] * 2
    result = vipwire("diff", *flags)
    assert result.exit_code == 1
    # nft 1.0.6 lists, but cannot load, an update of a map whose key is as long as a client's.
    beyond = (" update @", " delete @")
    script = "\n".join(line for line in result.stdout.splitlines() if not any(each in line for each in beyond))
    run("nft -f -", script + "\n")
    assert "service-ips" in run("nft list table ip vipwire")


def test_without_a_route_nothing_is_answered_and_that_is_said(programmed: list[str]) -> None:
    assert vipwire("explain", "web", *programmed).exit_code == 0
    run("ip route del default")
    result = vipwire("explain", "web", *programmed)
    assert result.exit_code == 1
    assert "does otherwise: this node has no route to 10.96.0.10 (network is unreachable)" in result.stdout
    assert "does the same" not in result.stdout


def test_each_familys_part_of_the_script_is_what_its_tool_takes(
    network: int, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del network
    monkeypatch.setenv("COLUMNS", "60")
    flags = [*flags, "--proxy-mode=iptables"]
    both = vipwire("diff", *flags).stdout.splitlines()
    assert [line for line in both if line.startswith("#")] == [
        "# IPv4, for iptables-restore --noflush",
        "# IPv6, for ip6tables-restore --noflush",
    ]
    for family, tool in (("ipv4", "iptables-restore"), ("ipv6", "ip6tables-restore")):
        run(f"{tool} --noflush", vipwire("diff", *flags, f"--family={family}").stdout)
    result = vipwire("diff", *flags)
    assert (result.exit_code, result.stdout) == (0, "")


def test_an_element_that_is_gone_is_found_by_every_command(programmed: list[str]) -> None:
    run("nft delete element ip vipwire cluster-ips { 10.96.0.10 }")
    status = as_json("status", "web", *programmed)
    assert status["services"][0]["kernel"][0] == {"family": "IPv4", "state": "drifted", "missing": 1, "different": 0}
    diff = vipwire("diff", *programmed)
    assert diff.exit_code == 1
    assert 'add element ip vipwire cluster-ips { 10.96.0.10 comment "default/web" }' in diff.stdout
    explained = as_json("explain", "web", "--from=203.0.113.9", *programmed)
    assert any(step["state"] == "missing" for step in explained["kernel"]["path"])


def test_a_foreign_rule_on_the_way_makes_the_kernels_answer_unknown(programmed: list[str]) -> None:
    run("nft insert rule ip vipwire services tcp dport 80 drop")
    kernel = as_json("explain", "web", "--from=203.0.113.9", *programmed)["kernel"]
    assert kernel["agrees"] is None
    assert any(step["state"] == "not as planned" for step in kernel["path"])


def test_rules_that_were_flushed_do_otherwise_than_planned(programmed: list[str]) -> None:
    run("nft flush chain ip vipwire nat-prerouting")
    result = vipwire("explain", "web", "--from=203.0.113.9", *programmed)
    assert result.exit_code == 1
    assert "the plan says answered, the kernel's rules say rejected" in result.stdout


def test_a_table_of_another_layout_is_said_to_be_one(network: int, flags: list[str]) -> None:
    del network
    run("nft add table ip vipwire")
    run("nft add set ip vipwire service-ips { type ipv4_addr; }")
    family = as_json("status", *flags)["families"][0]
    assert family["state"] == "of another version"
    assert "table ip vipwire" in family["reason"]
    assert vipwire("diff", *flags).stdout.startswith("# IPv4: another version of vipwire")
    kernel = as_json("explain", "web", "--from=203.0.113.9", *flags)["kernel"]
    assert (kernel["agrees"], kernel["difference"]) == (None, family["reason"])


def test_foreign_tables_and_a_second_proxy_are_found(network: int, flags: list[str]) -> None:
    del network
    run("nft add table ip kube-proxy")
    run("nft add table inet filter")
    document = as_json("check", *flags)
    assert any(
        "kube-proxy's nftables mode has a table ip kube-proxy" in each["said"] for each in document["findings"]
    )
    assert any("inet filter" in each["said"] for each in document["findings"])
    assert vipwire("check", *flags).exit_code == 1


def test_connections_are_followed_and_counted_while_they_come(programmed: list[str]) -> None:
    assert vipwire("trace", "--seconds=0", *programmed).stdout.strip() == "No new connection to a VIP was seen."
    (top,) = [
        json.loads(line)
        for line in vipwire("top", "-c1", "--interval=0.1", "-o=json", *programmed).stdout.splitlines()
    ]
    assert (top["source"], top["rows"]) == ("connection tracking events", [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "--manifest=x"], "No such option '--manifest'. Did you mean '--manifests'?"),
        (["status", "--cleanup"], "--cleanup has no meaning for a command that only reads"),
        (["explain", "10.96.0.10"], "is not a destination"),
        (["plan", "--oom-score-adj=5000"], "oomScoreAdj"),
    ],
)
def test_bad_input_is_exit_status_2_and_one_line(flags: list[str], arguments: list[str], said: str) -> None:
    result = vipwire(*arguments, *flags)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_names_alone_are_printed_for_other_programs(programmed: list[str]) -> None:
    served = as_json("explain", "web", "--from=203.0.113.9", *programmed)["endpoints"]
    named = vipwire("explain", "web", "--from=203.0.113.9", *programmed, "-o", "name").stdout.splitlines()
    assert named == [f"{each['address']}:{each['port']}" for each in served]
    assert named
    found = as_json("check", *programmed)["findings"]
    wrong = [f"{each['area']}/{each['what']}" for each in found if each["level"] in ("bad", "warning")]
    assert vipwire("check", *programmed, "-o", "name").stdout.splitlines() == wrong
    assert vipwire("check", "--leave-ipvs", *programmed, "-o", "name").exit_code == 2
    assert vipwire("diff", *programmed, "-o", "name").stdout == ""
    run("nft delete table ip vipwire")
    (family, _) = as_json("diff", *programmed)["families"]
    changed = vipwire("diff", *programmed, "-o", "name")
    assert (changed.exit_code, changed.stdout.splitlines()) == (1, family["objects"])
    assert len(family["objects"]) == family["missing"] > 0
    assert vipwire("trace", "--seconds=0", *programmed, "-o", "name").stdout == ""
    assert vipwire("drain", "--list", *programmed, "-o", "name").stdout == ""


@pytest.mark.parametrize("looks", [("explain", "web"), ("check",), ("diff", "web")], ids=lambda looks: looks[0])
def test_what_is_watched_is_printed_anew_when_it_is_another(programmed: list[str], looks: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "vipwire", *looks, *programmed, "-o", "json", "--watch", "--interval=0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            first = read_document(process)
            if looks[0] != "check":
                run("nft delete table ip vipwire")
            else:
                run("nft add table ip kube-proxy")
            assert read_document(process) != first
        finally:
            process.terminate()


def read_document(process: "subprocess.Popen[str]") -> Any:
    """Read one JSON document of several lines."""
    assert process.stdout
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            return json.loads(text)
    raise AssertionError(text)


def test_a_ping_to_a_cluster_ip_is_refused(programmed: list[str]) -> None:
    """As docs/leave-ipvs.md says; a process of the node hears it at once, others get ICMP port unreachable."""
    del programmed
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw, pytest.raises(PermissionError):
        raw.sendto(bytes.fromhex("0800f7fe00010000"), ("10.96.0.10", 0))


def test_the_commands_that_replace_those_of_ipvs_mode_say_something(programmed: list[str]) -> None:
    """The right column of the tables in docs/leave-ipvs.md; `top` and `trace` go on until they are interrupted."""
    text = (Path(__file__).parents[3] / "docs/leave-ipvs.md").read_text()
    rows = (line.split(" | ")[1] for line in text.splitlines() if line.count(" | ") == 1)
    commands = [each for row in rows for each in re.findall(r"`((?:vipwire|nft|sysctl) [^`]+)`", row)]
    assert len(commands) >= 7
    for each in commands:
        program, *words = each.split()
        if program != "vipwire":
            assert run(each), each
        elif words[0] not in ("top", "trace", "drain", "cleanup"):
            assert vipwire(*words, *programmed).stdout, each
