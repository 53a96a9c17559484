"""Fixtures of the conformance suite: every test runs for each mode and family, in shared clusters.

A cluster is built when a test first asks for its options, and stays for later tests, which use their own Service
names. Beyond the limit, the least recently used cluster ends. Between its tests a cluster's proxy is paused: the
checks of idle proxies would take a guest's whole CPU.
"""

import contextlib
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.proxy.conformance import own_cgroup
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.explained import Witness
from tests.proxy.conformance.mode import Mode
from tests.proxy.conformance.modes import MODES
from tests.proxy.conformance.sentences import check_asked, sentences_of

from vipwire.model.net import Family, Protocol

ClusterWith = Callable[..., Cluster]
Clusters: TypeAlias = "OrderedDict[tuple[object, ...], Cluster]"
MOST_CLUSTERS = 8
"""Clusters at a time in each process. A proxy has two of a user's 128 inotify instances."""
_FAMILIES = frozenset(family.value for family in Family)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sentence(number, ...): proves these sentences of docs/semantics.md")
    config.addinivalue_line("markers", "direct: about modes whose sockets are given endpoints when they connect")
    # iptables-legacy's lock is the machine's, although each network namespace has its own tables.
    os.environ["XTABLES_LOCKFILE"] = f"/run/xtables-{os.getpid()}.lock"


def pytest_unconfigure() -> None:
    Path(os.environ.pop("XTABLES_LOCKFILE")).unlink(missing_ok=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run mode after mode, behind all other tests except those that wait for guests; reduce sampled modes."""
    _leave_direct(config, items)
    if os.environ.get("VIPWIRE_CONFORMANCE") != "whole":
        _sample(config, items)
    items.sort(key=_turn)


def _leave_direct(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests of programs only for modes that have programs."""
    surplus = [
        item
        for item in items
        if item.get_closest_marker("direct") and isinstance(item, pytest.Function) and not _mode_of(item).has_cgroup
    ]
    _leave(config, items, surplus)


def _leave(config: pytest.Config, items: list[pytest.Item], surplus: Sequence[pytest.Item]) -> None:
    if left := set(surplus):
        config.hook.pytest_deselected(items=surplus)
        items[:] = [item for item in items if item not in left]


def _mode_of(item: pytest.Function) -> Mode:
    found = item.callspec.params["mode"]
    assert isinstance(found, Mode)
    return found


def _turn(item: pytest.Item) -> int:
    """Return a test's turn. The proxies of a mode's clusters slow down concurrent tests."""
    if item.name.startswith("test_in_the_guest"):
        return len(MODES) + 1
    mode = (
        item.callspec.params.get("mode") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    return len(MODES) - MODES.index(mode) if isinstance(mode, Mode) else 0


def _sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case of each test and its sentences for sampled modes; in others, one family of each.

    VIPWIRE_CONFORMANCE=whole in the environment keeps all.
    """
    seen: set[tuple[object, ...]] = set()
    surplus: list[pytest.Item] = []
    for item in items:
        params: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        mode = params.get("mode")  # other suites have parameters of that name too
        if not isinstance(mode, Mode) or not (mode.sampled or mode.one_family) or item.get_closest_marker("direct"):
            continue
        family = _family_of_case(item.nodeid, mode)
        if family and params.get("family", family) is not family:
            surplus.append(item)
        elif mode.sampled:
            name = item.nodeid.partition("[")[0]
            case = (str(mode), name, frozenset(sentences_of(item)), params.get("harm"))
            if case in seen:
                surplus.append(item)
            seen.add(case)
    _leave(config, items, surplus)


def _family_of_case(nodeid: str, mode: Mode) -> Family | None:
    """Choose the family of a case that runs in one: always the same."""
    name, _, listed_words = nodeid.partition("[")
    chosen = zlib.crc32(name.encode())
    if mode.one_family:
        words = listed_words.rstrip("]").split("-")
        others = [word for word in words if word not in (mode.name, mode.variant, *_FAMILIES)]
        if not (others or mode.variant):
            return None
        chosen += bool(mode.variant) + zlib.crc32("-".join(others).encode())
    return list(Family)[chosen % len(Family)]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a passed test if `explain` was not asked about its sentences."""
    before = Witness.asked.total()
    result = yield
    check_asked(sentences_of(pyfuncitem), Witness.asked.total() - before)
    return result


@pytest.fixture(scope="session", params=MODES, ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture(scope="session")
def _clusters(mode: Mode) -> Iterator[Clusters]:
    if os.geteuid() != 0:
        pytest.fail(
            "the conformance suite makes network namespaces, which needs root: run it with sudo", pytrace=False
        )
    clusters: Clusters = OrderedDict()
    with contextlib.ExitStack() as stack:
        if mode.has_cgroup:
            stack.enter_context(own_cgroup.entered())
        yield clusters
        for cluster in clusters.values():
            stack.callback(cluster.down)


def _parameters(request: pytest.FixtureRequest) -> Collection[object]:
    callspec = getattr(request.node, "callspec", None)
    return () if callspec is None else tuple(callspec.params.values())


@pytest.fixture
def cluster_with(request: pytest.FixtureRequest, mode: Mode, _clusters: Clusters) -> Iterator[ClusterWith]:
    """Build or find the cluster with these options; skip tests that the mode cannot pass.

    A failed test runs again in its own cluster, so that leftovers of others cannot fail it twice.
    """
    for number in sentences_of(request.node):
        if number in mode.cannot:
            pytest.skip(f"{number}: {mode} cannot: {mode.cannot[number]}")
    if mode.no_sctp and Protocol.SCTP in _parameters(request) and "refus" not in request.node.nodeid:
        pytest.skip(f"{mode} cannot: {mode.no_sctp}")

    def build(options: Sequence[str], purpose: str = "", *, cidrs: bool = True) -> Cluster:
        if refused := mode.excludes.intersection(options):
            pytest.skip(f"{mode} refuses {', '.join(sorted(refused))}")
        again = request.node.nodeid if getattr(request.node, "execution_count", 1) > 1 else ""
        key = (str(mode), tuple(options), purpose, cidrs, again)
        if key not in _clusters:
            while len(_clusters) >= MOST_CLUSTERS:
                _clusters.popitem(last=False)[1].down()
            made = Cluster(mode, options, cidrs=cidrs, calm=not purpose)
            _clusters[key] = made
            made.up()
        _clusters.move_to_end(key)
        _clusters[key].proxy.resume()
        _clusters[key].enter(request.node.path.name)
        return _clusters[key]

    yield build
    for each in _clusters.values():
        each.proxy.pause()


@pytest.fixture
def cluster(cluster_with: ClusterWith) -> Cluster:
    """The default cluster: ClusterCIDR recognises Pods."""
    return cluster_with([POD_CIDRS])


@pytest.fixture
def restless(cluster_with: ClusterWith) -> Cluster:
    """A cluster whose proxy tests end, start and disturb. It runs when a test begins."""
    found = cluster_with([POD_CIDRS], "restless")
    if not found.proxy.running:
        found.proxy.start()
    return found


@pytest.fixture(params=[False, True], ids=["as it is", "IPv4 in IPv6"])
def mapped(request: pytest.FixtureRequest, family: Family) -> bool:
    if request.param and family is Family.IPV6:
        pytest.skip("there is no such address")
    return bool(request.param)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a cluster's drain orders."""
    return str(tmp_path_factory.mktemp("drained"))


@pytest.fixture
def connecting(cluster_with: ClusterWith) -> Cluster:
    """A cluster in which connected UDP sockets get endpoints too."""
    return cluster_with([POD_CIDRS, "--ebpf-connected-udp", "--ebpf-affinity"])
