"""How a parallel session is shared out: what belongs together stays together, and the longest shares come first."""

from pathlib import Path

import pytest
from tests.proxy.conformance.modes import HERE
from tests.proxy.kernel.guests import SUITES
from tests.shares import BEHIND, LONG, MODES, share, turn

GUEST = "tests/proxy/kernel/test_ipvs_guest.py::test_in_the_guest"


@pytest.mark.parametrize("mode", HERE, ids=str)
def test_a_modes_conformance_suite_is_one_share(mode: object) -> None:
    names = {share(f"tests/proxy/conformance/test_{file}.py::test_a[{mode}-{rest}]") for file, rest in ("xa", "yb")}
    assert names == {f"conformance of {mode}"}
    assert (
        share(f"tests/proxy/conformance/test_handover.py::test_a[{mode}-to-{mode}]")
        == "tests/proxy/conformance/test_handover.py"
    )


def test_each_guest_is_a_share_with_a_short_file_behind_it() -> None:
    assert [share(f"{GUEST}[{suite}]") for suite in SUITES] == [share(f"{name}::test_a") for name in BEHIND]


def test_what_takes_long_begins_first_and_a_process_has_something_behind_its_guest() -> None:
    order = [
        f"{GUEST}[{SUITES[0]}]",
        f"{next(iter(BEHIND))}::test_a",
        f"{GUEST}[{SUITES[1]}]",
        *(f"tests/proxy/conformance/test_a.py::test_a[{mode}-x]" for mode in MODES),
    ]
    order += [
        "tests/up/unit/test_cluster_kubectl.py::test_a",
        "tests/proxy/kernel/test_b.py::test_b",
        "tests/proxy/unit/test_c.py::test_c",
    ]
    collected = [*order]
    collected.reverse()
    assert sorted(collected, key=turn) == order


def test_files_with_a_turn_of_their_own_are_there() -> None:
    root = Path(__file__).parent.parent.parent
    assert [name for name in (*LONG, *BEHIND) if not (root / name).exists()] == []
    assert {str(mode) for mode in HERE} <= set(MODES)
