"""How a parallel session is shared out: what belongs together stays together, and the longest shares come first."""

from pathlib import Path

import pytest
from tests.proxy.conformance.modes import HERE
from tests.proxy.kernel.guests import SUITES
from tests.shares import BEHIND, LONG, share, turn

GUEST = "tests/proxy/kernel/test_ipvs_guest.py::test_in_the_guest"


@pytest.mark.parametrize("mode", HERE, ids=str)
def test_a_modes_conformance_suite_is_one_share(mode: object) -> None:
    names = {share(f"tests/proxy/conformance/test_{file}.py::test_a[{mode}-{rest}]") for file, rest in ("xa", "yb")}
    assert names == {f"conformance of {mode}"}
    assert (
        share(f"tests/proxy/conformance/test_handover.py::test_a[{mode}-to-{mode}]")
        == "tests/proxy/conformance/test_handover.py"
    )


def test_the_guests_are_two_shares_and_the_longest_one_of_them() -> None:
    shares = [share(f"{GUEST}[{suite}]") for suite in SUITES]
    assert shares == ["the longest guest", "other guests", "other guests"]


def test_what_takes_long_begins_first_and_a_process_has_something_behind_its_guest() -> None:
    order = [
        f"{GUEST}[{SUITES[1]}]",
        f"{GUEST}[{SUITES[0]}]",
        f"tests/proxy/conformance/test_a.py::test_a[{HERE[0]}-x]",
    ]
    order += [
        "tests/proxy/unit/test_model_net.py::test_a",
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
