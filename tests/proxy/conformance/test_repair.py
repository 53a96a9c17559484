"""What others do to our rules is put right at the next check, and said; what is theirs stays."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.mode import Command
from tests.proxy.conformance.modes import MODES
from tests.proxy.conformance.packets import OUTSIDE, POD
from tests.proxy.conformance.sentences import sentence

from vipwire.model.net import Family

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-2a")
REPAIRED = "repaired changes of other programs in the kernel"
WIPES = sorted({name for mode in MODES for name in mode.harm.wipes})
PIECES = sorted({name for mode in MODES for name in mode.harm.pieces})


@sentence("S116")
@pytest.mark.parametrize("harm", WIPES)
def test_rules_that_were_wiped_are_back(restless: Cluster, family: Family, harm: str) -> None:
    if harm not in restless.mode.harm.wipes:
        pytest.skip(f"{restless.mode} has nothing of that kind")
    check_repair(restless, family, restless.mode.harm.wipes[harm][family])


@sentence("S117")
@pytest.mark.parametrize("harm", PIECES)
def test_a_piece_that_was_removed_is_back(restless: Cluster, family: Family, harm: str) -> None:
    if harm not in restless.mode.harm.pieces:
        pytest.skip(f"{restless.mode} has nothing of that kind")
    check_repair(restless, family, restless.mode.harm.pieces[harm][family])


@sentence("S118")
def test_what_was_added_to_ours_is_removed(restless: Cluster, family: Family) -> None:
    check_repair(restless, family, restless.mode.harm.extra[family])


def check_repair(cluster: Cluster, family: Family, command: Command) -> None:
    """Do harm; nothing but a check by the proxy itself can repair it, for no object changes."""
    service = cluster.service("harmed", cluster.pods(*PODS))
    before, since = both(cluster), len(cluster.proxy.log)
    vip = service.vip(family).address
    cluster.lab.run("node-1", [word.replace("{vip}", vip) for word in command])
    cluster.proxy.said(since, "level=warn", REPAIRED, f"ip_family={family.value}")
    until(lambda: both(cluster) == before, lambda: f"they are not as before: {set(before) ^ set(both(cluster))}")
    for caller in (POD, OUTSIDE):
        cluster.answered(caller, service.vip(family), PODS)


def both(cluster: Cluster) -> list[str]:
    return [rule for family in Family for rule in cluster.proxy.rules(family)]


@contextmanager
def beside_others(cluster: Cluster) -> Iterator[Callable[[], str]]:
    """Have rules of others, and the proxy see them come and go: between two looks, both together are no change."""
    since = len(cluster.proxy.log)
    with cluster.proxy.others() as listing:
        seen(cluster, since)
        yield listing
        since = len(cluster.proxy.log)
    seen(cluster, since)


def seen(cluster: Cluster, since: int) -> dict[Family, str]:
    """Wait until the proxy has read its rules because of changes elsewhere; give what it said, in alarmed modes."""
    if not cluster.mode.alarmed:
        return {}
    return {
        family: cluster.proxy.said(since, "msg=synced", f"ip_family={family.value}", "observed=") for family in Family
    }


@sentence("S115")
def test_what_is_not_ours_stays_through_syncs_and_repairs(restless: Cluster, family: Family) -> None:
    service = restless.service("harmed", restless.pods(*PODS))
    with beside_others(restless) as listing:
        before, since = listing(), len(restless.proxy.log)
        restless.write()
        (harm, *_) = restless.mode.harm.wipes.values()
        restless.lab.run("node-1", harm[family])
        restless.proxy.said(since, REPAIRED, f"ip_family={family.value}")
        restless.answered(OUTSIDE, service.vip(family), PODS)
        restless.proxy.stop()
        restless.proxy.start()
        assert listing() == before


@sentence("S115")
def test_changes_of_others_elsewhere_are_no_reason_to_write(restless: Cluster, family: Family) -> None:
    service = restless.service("harmed", restless.pods(*PODS))
    before, since = restless.proxy.rules(family, handles=True), len(restless.proxy.log)
    with beside_others(restless):
        if restless.mode.alarmed:
            line = seen(restless, since)[family]
            assert all(f"{word}=0 " in line for word in ("added", "changed", "removed")), line
            assert REPAIRED not in restless.proxy.log[since:]
        else:  # it says nothing unless it repairs, and then it repairs no more than there is
            piece = restless.mode.harm.pieces["an element is removed"][family]
            restless.lab.run("node-1", [word.replace("{vip}", service.vip(family).address) for word in piece])
            assert "objects=1 " in restless.proxy.said(since, REPAIRED, f"ip_family={family.value}")
        assert restless.proxy.rules(family, handles=True) == before
        restless.answered(OUTSIDE, service.vip(family), PODS)
