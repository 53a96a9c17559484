"""The programs are found, chosen and run; what they say when they fail reaches the operator."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from vipwire.errors import CommitError, UnsupportedError
from vipwire.linux.netlink.socket import NetlinkError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.xtables import tool as xtables
from vipwire.modes.xtables.choice import find_used_tools, order_by_use
from vipwire.modes.xtables.tool import IptablesTool, Variant, find_installed_tools, find_tools_with_tables

Script = Callable[[str, str], None]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Install programs that are shell scripts, in a directory where there is nothing else."""
    monkeypatch.setattr(xtables, "_DIRECTORIES", "")
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return write


def make(script: Script, variant: Variant, saves: str, restores: str = "exit 0") -> IptablesTool:
    script(f"iptables-{variant.value}-save", saves)
    script(f"iptables-{variant.value}-restore", restores)
    return IptablesTool(Family.IPV4, variant, "a test")


@pytest.mark.usefixtures("script")
def test_what_is_not_installed_is_said_with_what_needs_it() -> None:
    with pytest.raises(
        UnsupportedError, match=r"^a test needs ip6tables-nft-restore, .* install the package iptables"
    ):
        IptablesTool(Family.IPV6, Variant.NFT, "a test")
    assert list(find_installed_tools(Family.IPV4, "a test")) == []


def test_the_plain_name_serves_where_it_is_of_that_variant(script: Script) -> None:
    script("iptables", "echo 'iptables v1.8.9 (nf_tables)'")
    script("iptables-save", "echo '*nat'")
    script("iptables-restore", "exit 0")
    (tool,) = find_installed_tools(Family.IPV4, "a test")
    assert (tool.variant, tool.name, tool.save()) == (Variant.NFT, "iptables-nft", "*nat\n")


def test_tables_are_asked_for_by_name_or_all_at_once(script: Script) -> None:
    tool = make(script, Variant.NFT, 'echo "# $*"')
    assert tool.save() == "# \n"
    assert tool.save("nat", "filter", counted=True) == "# -c -t nat\n# -c -t filter\n"


@pytest.mark.parametrize(
    ("saves", "said"),
    [
        ("echo bad >&2; echo worse >&2; exit 3", "iptables-nft-save -t nat: bad"),
        ("exit 3", "iptables-nft-save -t nat: 3"),
        (
            "echo '# Table nat is incompatible, use nft'",
            "iptables-nft-save -t nat: the table holds rules that only nft",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_an_error(script: Script, saves: str, said: str) -> None:
    tool = make(script, Variant.NFT, saves)
    with pytest.raises(CommitError) as raised:
        tool.save("nat")
    assert str(raised.value).startswith(said)


def test_a_table_of_the_legacy_variant_comes_in_pieces_and_one_of_the_other_as_a_whole(script: Script) -> None:
    legacy = make(script, Variant.LEGACY, 'echo "# $*"; printf "\\303\\251"')
    assert "".join(legacy.pieces("nat")) == "# -t nat\né"
    assert list(make(script, Variant.NFT, 'echo "# $*"').pieces("nat")) == ["# -t nat\n"]


@pytest.mark.parametrize(
    ("saves", "said"),
    [
        ("echo bad >&2; echo worse >&2; exit 3", "iptables-legacy-save -t nat: bad"),
        ("echo '*nat'; exit 3", "iptables-legacy-save -t nat: 3"),
    ],
)
def test_a_table_that_ends_too_early_is_an_error(script: Script, saves: str, said: str) -> None:
    with pytest.raises(CommitError) as raised:
        list(make(script, Variant.LEGACY, saves).pieces("nat"))
    assert str(raised.value) == said


def test_who_does_not_read_on_waits_for_no_program(script: Script) -> None:
    pieces = make(script, Variant.LEGACY, "while :; do echo '# more'; done").pieces("nat")
    assert next(pieces).startswith("# more")
    pieces.close()  # type: ignore[attr-defined]


def test_a_program_that_is_gone_is_an_error(script: Script, tmp_path: Path) -> None:
    tool = make(script, Variant.LEGACY, "")
    (tmp_path / "iptables-legacy-save").unlink()
    with pytest.raises(CommitError, match=r"iptables-legacy: .*No such file"):
        list(tool.pieces("nat"))


def test_a_refusal_says_the_rule(script: Script) -> None:
    tool = make(
        script, Variant.LEGACY, "", "while read -r line; do :; done; echo 'Error occurred at line: 2' >&2; exit 2"
    )
    with pytest.raises(CommitError, match=r"iptables-legacy-restore: line 2: -A B -j C: Error occurred"):
        tool.restore("*nat\n-A B -j C\nCOMMIT\n")


def test_a_text_may_come_in_pieces_and_is_there_for_a_refusal(script: Script) -> None:
    restores = (
        "while read -r line; do last=$line; done; [ \"$last\" != COMMIT ] || echo 'failed at line: 3' >&2; exit 2"
    )
    tool = make(script, Variant.LEGACY, "", restores)
    with pytest.raises(CommitError, match=r"line 3: -A é -j C") as raised:
        tool.restore(piece for piece in ("*nat\n", ":é - [0:0]\n-A é", " -j C\nCOMMIT\n"))
    assert raised.value.transaction == "*nat\n:é - [0:0]\n-A é -j C\nCOMMIT\n"


def test_the_text_is_no_pipe_which_the_legacy_tools_own_alarm_would_cut_off(script: Script) -> None:
    restores = "if [ -p /dev/stdin ]; then echo 'a pipe' >&2; exit 1; fi; read -r first; [ \"$first\" = '*nat' ]"
    make(script, Variant.LEGACY, "", restores).restore("*nat\nCOMMIT\n")


def test_a_program_that_does_not_end_is_ended(script: Script) -> None:
    make(script, Variant.NFT, "while :; do :; done")
    with pytest.raises(CommitError, match="timed out"):
        IptablesTool(Family.IPV4, Variant.NFT, "a test", limit=0.2).save()


def test_the_tool_that_the_node_uses_comes_first_and_failures_are_kept(script: Script) -> None:
    make(script, Variant.NFT, "echo '-A X'; echo '-A X'")
    make(script, Variant.LEGACY, "echo ':KUBE-KUBELET-CANARY - [0:0]'")
    tools, errors = find_used_tools(Family.IPV4, "a test")
    assert ([tool.variant for tool in tools], errors) == ([Variant.LEGACY, Variant.NFT], [])
    make(script, Variant.LEGACY, "echo broken >&2; exit 1")
    tools, errors = find_used_tools(Family.IPV4, "a test")
    assert ([tool.variant for tool in tools], errors) == ([Variant.NFT], ["iptables-legacy-save: broken"])


def test_the_legacy_tool_is_left_alone_where_its_engine_has_no_tables(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xtables, "_PROC_NET", tmp_path)
    make(script, Variant.NFT, "")
    make(script, Variant.LEGACY, "")
    assert [tool.variant for tool in find_tools_with_tables(Family.IPV4, "a test")] == [Variant.NFT]
    (tmp_path / "ip_tables_names").write_text("")
    assert [tool.variant for tool in find_tools_with_tables(Family.IPV4, "a test")] == [Variant.NFT]
    (tmp_path / "ip_tables_names").write_text("nat\n")
    assert [tool.variant for tool in find_tools_with_tables(Family.IPV4, "a test")] == [Variant.NFT, Variant.LEGACY]


@pytest.mark.parametrize(("number", "expected"), [(errno.EINVAL, []), (errno.EPERM, [Variant.NFT])])
def test_the_other_tool_is_left_alone_where_the_kernel_has_no_nf_tables(
    script: Script, monkeypatch: pytest.MonkeyPatch, number: int, expected: list[Variant]
) -> None:
    class Refusing(NetlinkSocket):
        def request(self, kind: int, payload: bytes, flags: int = 0) -> NoReturn:
            raise NetlinkError(number, f"{kind} {len(payload)} {flags}")

    monkeypatch.setattr(xtables, "NetlinkSocket", Refusing)
    make(script, Variant.NFT, "")
    assert [tool.variant for tool in find_tools_with_tables(Family.IPV4, "a test")] == expected


def test_kubelets_chains_count_more_than_rules_and_nft_comes_before_its_like() -> None:
    assert order_by_use({"nft": "-A X\n-A X\n", "legacy": ":KUBE-IPTABLES-HINT - [0:0]\n"}) == ["legacy", "nft"]
    assert order_by_use({"nft": "-A X\n", "legacy": "-A X\n-A X\n"}) == ["legacy", "nft"]
    assert order_by_use({"nft": "", "legacy": ""}) == ["nft", "legacy"]
