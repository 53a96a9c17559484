"""Commits of others are told from ours, by a real kernel's count."""

from contextlib import closing

import pytest
from tests.fakes.own_network import run

from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.model.net import Family
from vipwire.modes.xtables.tool import IptablesTool, Variant

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("network")]

RULES = "*nat\n:OURS - [0:0]\n-A OURS -j RETURN\nCOMMIT\n*filter\n:OURS - [0:0]\n-A OURS -j DROP\nCOMMIT\n"


def test_a_run_of_two_tables_is_two_commits_and_none_of_others() -> None:
    tool = IptablesTool(Family.IPV4, Variant.NFT, "a test")
    tool.restore(RULES)
    with closing(Generations()) as generations:
        before = generations.observe()
        tool.restore(RULES)
        assert generations.observe_after(before, 2) == before
        assert generations.observe() == before


def test_what_others_commit_while_we_do_is_noticed() -> None:
    tool = IptablesTool(Family.IPV4, Variant.NFT, "a test")
    with closing(Generations()) as generations:
        before = generations.observe()
        tool.restore(RULES)
        run("nft add table ip others")
        assert generations.observe_after(before, 2) is None
        assert generations.observe() != before
