"""Whatever program of the classic BPF stands in a rule: whether it matches, or a ValueError."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.values import ip

from vipwire.modes.iptables.rules.bpf import matches

_NUMBERS = st.one_of(st.sampled_from([0x20, 0xAC, 0x24, 0x07, 0x74, 0x94, 0x35, 0x06, -1, 0, 1, 12]), st.integers())
_STEPS = st.lists(st.lists(_NUMBERS, min_size=3, max_size=5).map(lambda step: " ".join(map(str, step))), max_size=8)


@given(st.one_of(st.text(max_size=40), _STEPS.map(lambda steps: ",".join([str(len(steps)), *steps]))))
def test_a_program_ends_with_an_answer_or_a_value_error(text: str) -> None:
    for address in ("203.0.113.9", "2001:db8::9"):
        with suppress(ValueError):
            assert matches(text, ip(address)) in (True, False)
