"""Every rule of any plan has a form of the kernel's, and that form reads as the rule."""

from hypothesis import given
from tests.proxy.laws.test_iptables_agreement import Both, pairs

from vipwire.modes.xtables.binary.expressions import Encoder, reset_counter
from vipwire.modes.xtables.binary.shown import RuleReader


@given(pairs)
def test_a_rule_as_expressions_of_nf_tables_reads_as_it_was_written(both: Both) -> None:
    family = both.world.space.family
    encode, words = Encoder(family), RuleReader(family)
    for rules in both.objects.values():
        for rule in rules:
            expressions = encode(rule).expressions
            assert words(expressions) == rule
            assert reset_counter(expressions) == expressions
