"""Which variant of iptables userspace mode takes: that of the node, if this kernel can have rules in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.modes.userspace.driver import choose_iptables_tool
from vipwire.modes.xtables import tool as xtables
from vipwire.modes.xtables.tool import Variant

Engine = Callable[[Variant, str], None]
REFUSES = "echo 'TABLE_ADD failed' >&2; exit 1"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Install programs of a variant that list nothing, and do as they are told when rules are written."""
    monkeypatch.setattr(xtables, "_DIRECTORIES", "")
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(variant: Variant, restores: str) -> None:
        for suffix, text in (("save", "exit 0"), ("restore", restores)):
            program = tmp_path / f"iptables-{variant.value}-{suffix}"
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)

    return write


def test_a_variant_that_only_lists_is_left_for_the_other_one_if_it_is_tried(engine: Engine) -> None:
    engine(Variant.NFT, REFUSES)
    engine(Variant.LEGACY, "exit 0")
    assert choose_iptables_tool(Family.IPV4, tried=True).variant is Variant.LEGACY
    assert choose_iptables_tool(Family.IPV4, tried=False).variant is Variant.NFT


def test_a_lock_that_others_hold_says_nothing_about_the_kernel(engine: Engine) -> None:
    engine(Variant.NFT, "echo 'Another app is currently holding the xtables lock' >&2; exit 4")
    engine(Variant.LEGACY, "exit 0")
    assert choose_iptables_tool(Family.IPV4, tried=True).variant is Variant.NFT


def test_where_neither_can_it_is_said_what_each_says(engine: Engine) -> None:
    engine(Variant.NFT, REFUSES)
    engine(Variant.LEGACY, "echo 'Table does not exist' >&2; exit 3")
    with pytest.raises(
        UnsupportedError, match=r"nft-restore: TABLE_ADD failed; .*Table does not exist; load iptable"
    ):
        choose_iptables_tool(Family.IPV4, tried=True)


@pytest.mark.usefixtures("engine")
def test_where_neither_is_installed_there_is_a_way_without_rules() -> None:
    with pytest.raises(UnsupportedError, match=r"iptables-restore, which is not installed: .*--userspace-bind"):
        choose_iptables_tool(Family.IPV4, tried=True)
