"""What holds for all stretches of slots, whatever is taken and given back."""

from hypothesis import given
from hypothesis import strategies as st

from vipwire.modes.ebpf.tables import COOLING_SECONDS, SlotsFullError, Stretches

SIZE = 64
STEPS = st.lists(
    st.tuples(st.sampled_from(("take", "give", "wait")), st.integers(min_value=1, max_value=20)), max_size=60
)


@given(steps=STEPS)
def test_no_two_stretches_overlap_and_none_is_used_again_before_it_has_cooled(steps: list[tuple[str, int]]) -> None:
    free, now = Stretches(SIZE), 0.0
    held: list[range] = []
    cooling: list[tuple[float, range]] = []
    for step, number in steps:
        if step == "wait":
            now += number / 10
        elif step == "give" and held:
            given_back = held.pop(number % len(held))
            free.release(given_back.start, len(given_back), now)
            cooling.append((now + COOLING_SECONDS, given_back))
        elif step == "take":
            try:
                first = free.reserve(number, now)
            except SlotsFullError:
                continue
            taken = range(first, first + number)
            assert taken.stop <= SIZE
            warm = [each for until, each in cooling if until > now]
            assert all(taken.start >= each.stop or each.start >= taken.stop for each in (*held, *warm))
            held.append(taken)


@given(lengths=st.lists(st.integers(min_value=1, max_value=8), max_size=20), kept=st.sets(st.integers(0, 19)))
def test_what_a_new_process_finds_taken_is_left_alone(lengths: list[int], kept: set[int]) -> None:
    before = Stretches(512)
    found = [(before.reserve(length, 0.0), length) for length in lengths]
    taken = [each for number, each in enumerate(found) if number in kept]
    free = Stretches(512, taken)
    for length in lengths:
        first = free.reserve(length, 0.0)
        assert all(first >= at + size or at >= first + length for at, size in taken)
        taken.append((first, length))
