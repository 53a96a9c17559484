"""Whatever text stands where iptables-save's should: chains and rules of it, or a DecodeError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire.xtables.save import read_tables, target

_LINES = st.lists(
    st.one_of(
        st.sampled_from(["*nat", "*filter", ":A - [0:0]", ":B - [0:0]", "COMMIT", "# words", ""]),
        st.builds("-A {} {}".format, st.sampled_from("ABC"), st.text(alphabet='-jgm AB"\\', max_size=30)),
        st.text(alphabet="*:-A \n#x", max_size=8),
    ),
    max_size=20,
).map("\n".join)


@given(_LINES)
def test_every_rule_is_read_or_the_text_is_refused(text: str) -> None:
    try:
        tables = read_tables(text)
    except DecodeError:
        return
    rules = [rule for chains in tables.values() for rules in chains.values() for rule in rules]
    lines = text.splitlines()
    if all(lines.count(line) == 1 for line in lines if line.startswith(("*", ":"))):
        assert len(rules) == sum(line.startswith("-A ") for line in lines)
    assert all(target(rule) in rule for rule in rules)


@pytest.mark.parametrize("text", ["-A A -j B", "*nat\n-A A -j B", "*nat\n:A - [0:0]\n*filter\n-A A -j B", ":A", "?"])
def test_a_rule_of_no_chain_and_a_chain_of_no_table_are_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        read_tables(text)
