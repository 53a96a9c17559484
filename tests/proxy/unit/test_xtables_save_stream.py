"""What iptables-save prints is read piece by piece as it is at once; a chain that holds what is known is that."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire.modes.iptables.access.tool_access import read_save_stream
from vipwire.modes.xtables.save import read_table

CHAINS = ("KUBE-A", "KUBE-AB", "INPUT")
RULES = ("-j ACCEPT", "-s 10.0.0.1/32 -j KUBE-A", "-m nfacct --nfacct-name ct -j DROP", "-j ACCEPTED", "")
HOLDS = st.dictionaries(st.sampled_from(CHAINS), st.lists(st.sampled_from(RULES), max_size=4).map(tuple))


def printed(chains: dict[str, tuple[str, ...]]) -> str:
    """Print a table as the tool does, which prints two blanks in one place."""
    heads = [f":{chain} - [0:0]" for chain in chains]
    rules = [f"-A {chain} {rule}".rstrip() for chain, held in chains.items() for rule in held]
    lines = ["# Generated", "*nat", *heads, *rules, "COMMIT", "# Completed", ""]
    return "\n".join(lines).replace("--nfacct-name ", "--nfacct-name  ")


def cut(text: str, size: int) -> Iterator[str]:
    """Give a text in pieces."""
    return (text[at : at + size] for at in range(0, len(text), size))


@given(HOLDS, HOLDS, st.integers(1, 200))
def test_a_table_in_pieces_is_the_table(
    holds: dict[str, tuple[str, ...]], known: dict[str, tuple[str, ...]], size: int
) -> None:
    text = printed(holds)
    found = read_save_stream(cut(text, size), known)
    assert {chain: [*rules] for chain, rules in found.items()} == read_table(text)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_who_holds_what_is_known_holds_those_very_rules(size: int) -> None:
    held = {"KUBE-A": ("-j ACCEPT", "-j DROP"), "KUBE-AB": ("-j ACCEPT",), "KUBE-B": ("-j ACCEPT",), "KUBE-C": ()}
    known = {
        "KUBE-A": ("-j ACCEPT", "-j DROP"),
        "KUBE-AB": ("-j ACCEPT", "-j DROP"),
        "KUBE-B": ("-j ACCE",),
        "KUBE-C": ("-j ACCEPT",),
        "KUBE-GONE": ("-j ACCEPT",),
    }
    found = read_save_stream(cut(printed(held), size), known)
    assert found["KUBE-A"] is known["KUBE-A"]
    assert {chain: tuple(rules) for chain, rules in found.items()} == held


def test_a_chain_that_goes_on_after_what_is_known_has_the_rest_too() -> None:
    text = printed({"KUBE-A": ("-j ACCEPT", "-j DROP")})
    assert [*read_save_stream([text], {"KUBE-A": ("-j ACCEPT",)})["KUBE-A"]] == ["-j ACCEPT", "-j DROP"]


def test_a_table_larger_than_what_is_looked_at_at_once_is_read_whole() -> None:
    held = {f"KUBE-{number}": tuple(f"-m mark --mark {each} -j ACCEPT" for each in range(9)) for number in range(900)}
    held["KUBE-LONG"] = tuple(f"-m mark --mark {each} -j ACCEPT" for each in range(4000))
    found = read_save_stream(cut(printed(held), 4096), held)
    assert {chain: tuple(rules) for chain, rules in found.items()} == held
    assert sum(found[chain] is rules for chain, rules in held.items()) == 900


@pytest.mark.parametrize("text", ["garbage\n", "*nat\n-A NOWHERE -j DROP\nCOMMIT\n", ":KUBE-A - [0:0]\n"])
def test_what_is_no_table_is_an_error(text: str) -> None:
    with pytest.raises(DecodeError, match="iptables-save"):
        read_save_stream([text], {})


def test_a_table_that_is_not_there_has_no_chains() -> None:
    assert read_save_stream(["# Warning: iptables-legacy tables present\n"], {}) == {}
    assert read_save_stream([], {}) == {}
