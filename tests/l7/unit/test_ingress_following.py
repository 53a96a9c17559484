"""Following changes one by one: it comes to what planning everything anew does, and costs what has changed."""

import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.l7.plans import count_calls, listed

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family
from vipwire.watched_objects.event import Deleted, Upserted
from vipwire_l7.haproxy.backends import name_spares
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.state import WHOLE, record_change
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.limits import MOST, Limited
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.desired import Desired
from vipwire_l7.watch.objects import (
    BackendEndpoint,
    BackendPort,
    BackendService,
    BackendSlice,
    Ingress,
    IngressKind,
    IngressObject,
    PathRule,
    PathType,
    Secret,
    ServiceRef,
    Usability,
)
from vipwire_l7.watch.snapshot import ChangeExtent

FOLDER = "/run/x/gen-1"
LAYOUT = Layout("/run/x", "/run/x/sock")
NAMES = ("a", "b", "c")
SLOT = re.compile(r"    server s\d+ [0-9]")
USER = "x:$6$abcdefgh$abcdefgh"


def name(text: str) -> ObjectName:
    return ObjectName("default", text)


def slice_of(service: str, *numbers: int) -> BackendSlice:
    endpoints = tuple(BackendEndpoint(Address(bytes((10, 0, 0, number))), Usability.READY) for number in numbers)
    return BackendSlice(name(service), name(service), Family.IPV4, {"http": 8080}, endpoints)


def service_of(text: str, port: int = 80, weights: str = "", external: str = "") -> BackendService:
    given_ = MappingProxyType({"vipwire.io/weights": weights} if weights else {})
    return BackendService(name(text), (BackendPort("http", port),), external, annotations=given_)


def ingress_of(
    text: str, service: str, *, address: str = "", login: str = "", class_name: str = "vipwire", expression: str = ""
) -> Ingress:
    to = ServiceRef(name(service), "http"), "f.backend"
    rules = [PathRule(f"{text}.org", "/", PathType.PREFIX, *to)]
    if expression:
        rules.append(PathRule(f"{text}.org", expression, PathType.IMPLEMENTATION_SPECIFIC, *to))
    annotations = {"vipwire.io/auth-secret": login} if login else {}
    annotations |= {"vipwire.io/use-regex": "true"} if expression else {}
    made = Ingress(name(text), class_name, tuple(rules), annotations=MappingProxyType(annotations))
    return replace(made, addresses=(address,) if address else ())


names = st.sampled_from(NAMES)
users = st.sampled_from(("", USER, "nonsense"))
things = st.one_of(
    st.builds(slice_of, names, st.integers(1, 12), st.integers(1, 12)),
    st.builds(slice_of, names),
    st.builds(
        service_of,
        names,
        st.sampled_from((80, 81)),
        st.sampled_from(("", '{"10.0.0.1": 3}', '{"10.0.0.2": 0}')),
        st.sampled_from(("", "", "one.example.net", "two.example.net")),
    ),
    st.builds(
        ingress_of,
        names,
        names,
        address=st.sampled_from(("", "192.0.2.1")),
        login=st.sampled_from(("", *NAMES)),
        class_name=st.sampled_from(("vipwire", "vipwire", "nginx")),
        expression=st.sampled_from(("", "", "/x[0-9]", "/y")),
    ),
    st.builds(lambda text, line: Secret(name(text), "", {"auth": line.encode()}), names, users),
)
START: tuple[IngressObject, ...] = (
    *(ingress_of(each, each) for each in NAMES),
    *(slice_of(each, 1, 2) for each in NAMES),
    *(service_of("a"), service_of("b"), service_of("c", external="one.example.net")),
)
KINDS = {
    BackendSlice: IngressKind.SLICE,
    BackendService: IngressKind.SERVICE,
    Ingress: IngressKind.INGRESS,
    Secret: IngressKind.SECRET,
}
FEW = {**MOST, Limited.ENDPOINTS: 5}
steps = st.lists(st.lists(st.tuples(things, st.sampled_from((False, False, True))), max_size=3), max_size=8)


def fixed_part(made: Configuration) -> dict[str, list[str]]:
    """Give the lines of each backend that no command can change: all but slots."""
    lines = {pool: text.splitlines() for pool, text in made.write_parts("mark") if pool}
    return {pool: [line for line in text if not SLOT.match(line)] for pool, text in lines.items()}


@given(steps)
def test_what_is_followed_is_what_is_planned_anew(batches: list[list[tuple[IngressObject, bool]]]) -> None:
    snapshot = listed(START)
    held = {(type(each), each.name): each for each in START}
    followed = Desired(snapshot, IngressPlanner(Setting()), LAYOUT, "PEM", most=FEW)
    live: Configuration | None = None
    running = dict[str, list[str]]()
    for batch in [[], *batches]:
        for thing, gone in batch:
            kind = cast("Any", KINDS[cast("Any", type(thing))])
            snapshot.apply(Deleted(kind, thing.name) if gone else Upserted(cast("Any", thing)))
            held.pop((type(thing), thing.name), None)
            if not gone:
                held[type(thing), thing.name] = thing
        delta = followed.update(snapshot.take_touched(), 0.0)
        # A snapshot of its own: `Desired` writes refused destinations into the snapshot.
        anew = Desired(listed(held.values()), IngressPlanner(Setting()), LAYOUT, "PEM", most=FEW)
        anew.update(ChangeExtent(structure=True), 0.0)
        assert followed.plan == anew.plan
        assert followed.problems == anew.problems
        served = [{key: set(slots) - {None} for key, slots in each.slots.items()} for each in (followed, anew)]
        assert served[0] == served[1]
        made = followed.build_configuration(FOLDER, live)
        change = followed.find_change(live, delta) if live is not None else None
        if live is not None and change is not None:
            whole = followed.find_change(live, WHOLE)
            assert (sorted(change.commands), set(change.reasons)) == (sorted(whole.commands), set(whole.reasons))
        if live is not None and change is not None:
            record_change(live, change)
            waits = set(followed.find_change(live, change.waiting).reasons)
            assert waits == set(followed.find_change(live, WHOLE).reasons), "all that needs a reload waits for it"
        if live is None or change is None or change.reasons:
            live = replace(made, spares=name_spares(0))
            running = fixed_part(made)
        assert not followed.find_change(live, WHOLE)
        assert all(running[pool] == lines for pool, lines in fixed_part(made).items() if pool not in live.placed)


def test_the_largest_backends_of_a_namespace_with_too_many_endpoints_use_as_many_as_each_other() -> None:
    good = ObjectName("good", "web")
    neighbour = replace(ingress_of("good", "web"), name=good)
    (rule,) = neighbour.rules
    neighbour = replace(neighbour, rules=(replace(rule, backend=ServiceRef(good, "http")),))
    theirs = replace(slice_of("web", 1, 2, 3, 4), name=good, service=good)
    snapshot = listed((neighbour, replace(service_of("web"), name=good), theirs))
    desired = Desired(snapshot, IngressPlanner(Setting()), LAYOUT, "PEM", most={**MOST, Limited.ENDPOINTS: 7})

    def used(*objects: IngressObject) -> dict[str, int]:
        for each in objects:
            snapshot.apply(Upserted(cast("Any", each)))
        delta = desired.update(snapshot.take_touched(), 0.0)
        found = {pool: len(set(slots) - {None}) for pool, slots in desired.slots.items()}
        assert {pool for pool in found if found[pool] != before.get(pool)} <= delta.pools
        before.update(found)
        return {pool.split(":")[1]: number for pool, number in found.items()}

    before: dict[str, int] = {}
    hostile = [(ingress_of(each, each), service_of(each)) for each in "abc"]
    assert used(*hostile[0], slice_of("a", 1, 2, 3, 4, 5, 6, 7)) == {"web": 4, "a": 7}
    assert not desired.problems
    assert used(*hostile[1], slice_of("b", 1)) == {"web": 4, "a": 6, "b": 1}
    assert used(*hostile[2], slice_of("c", 1, 2, 3, 4)) == {"web": 4, "a": 3, "b": 1, "c": 3}
    (told,) = desired.problems
    assert (str(told.object), "more than 7 endpoints" in told.message) == ("default/a", True)
    assert [each for each in desired.take_changed_problems().problems.values() if each] == [(told,)]
    assert used(slice_of("a", 1)) == {"web": 4, "a": 1, "b": 1, "c": 4}
    assert list(desired.take_changed_problems().problems.values()) == [()]
    for each in hostile[0]:
        kind = KINDS[type(each)]
        snapshot.apply(Deleted(kind, each.name))
    assert used() == {"web": 4, "b": 1, "c": 4}


def test_draining_endpoints_do_not_take_the_place_of_ready_ones() -> None:
    draining = [BackendEndpoint(Address(bytes((10, 0, 0, each))), Usability.DRAINING) for each in (1, 2)]
    ready = [BackendEndpoint(Address(bytes((10, 0, 0, each))), Usability.READY) for each in (3, 4)]
    both = BackendSlice(name("a"), name("a"), Family.IPV4, {"http": 8080}, (*draining, *ready))
    snapshot = listed((ingress_of("a", "a"), service_of("a"), both))
    desired = Desired(snapshot, IngressPlanner(Setting()), LAYOUT, "PEM", most={**MOST, Limited.ENDPOINTS: 2})
    desired.update(snapshot.take_touched(), 0.0)
    (slots,) = desired.slots.values()
    assert [each.endpoint for each in slots if each] == ready


def test_only_what_an_ingress_names_has_all_planned_anew() -> None:
    plain, users = ingress_of("a", "a", login="users"), Secret(name("users"), "", {"auth": USER.encode()})
    snapshot = listed((plain, users, service_of("a"), slice_of("a", 1)))
    desired = Desired(snapshot, IngressPlanner(Setting()), LAYOUT, "PEM")
    desired.update(snapshot.take_touched(), 0.0)
    for thing, parts in (
        (Secret(name("else"), "", {"auth": b"x"}), (0, 0)),
        (service_of("else"), (0, 0)),
        (slice_of("else", 1), (0, 0)),
        (replace(plain, addresses=("192.0.2.1",)), (0, 0)),
        (replace(plain, name=name("theirs"), class_name="nginx"), (0, 0)),
        (slice_of("a", 1, 2), (1, 0)),
        (service_of("a", weights='{"10.0.0.1": 3}'), (1, 0)),
        (replace(users, data={"auth": b"nonsense"}), (1, 1)),
        (replace(users, data={"auth": USER.encode()}), (1, 1)),
        (service_of("a", 81), (2, 1)),
        (replace(plain, rules=()), (1, 1)),
        (replace(plain, name=name("theirs")), (1, 1)),
    ):
        snapshot.apply(Upserted(cast("Any", thing)))
        changed = desired.update(snapshot.take_touched(), 0.0)
        assert (len(changed.pools), len(changed.hosts), changed.whole) == (*parts, False), thing


FIRST = ingress_of("i0", "s0")
CHANGES: dict[str, tuple[IngressObject, str]] = {
    "a path": (
        replace(FIRST, rules=(*FIRST.rules, replace(FIRST.rules[0], path="/new"))),
        f"add map {FOLDER}/prefixes.map <<\ni0.org/new/ default:s0:80\n",
    ),
    "an endpoint": (slice_of("s0", 1, 3), "set server default:s0:80/s2 addr 10.0.0.3 port 8080"),
}


def cost_of(thing: IngressObject, command: str, others: int, *, in_bytes: bool) -> int:
    """Count the calls, or bytes, by which an object changes among others, up to its commands and their record."""
    made = (
        (ingress_of(f"i{number}", f"s{number}"), service_of(f"s{number}"), slice_of(f"s{number}", 1, 2))
        for number in range(others)
    )
    snapshot = listed(each for things_ in made for each in things_)
    desired = Desired(snapshot, IngressPlanner(Setting()), LAYOUT, "PEM")
    desired.update(snapshot.take_touched(), 0.0)
    live, commands = desired.build_configuration(FOLDER), list[str]()
    snapshot.apply(Upserted(cast("Any", thing)))

    def follow() -> None:
        change = desired.find_change(live, desired.update(snapshot.take_touched(), 0.0))
        record_change(live, change)
        commands.extend(change.commands)

    found = count_bytes(follow) if in_bytes else count_calls(follow)
    assert command in commands
    return found


def count_bytes(act: Callable[[], None]) -> int:
    """Return the most memory that is needed meanwhile."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("thing", "command"), CHANGES.values(), ids=CHANGES)
def test_a_change_costs_the_same_among_many(thing: IngressObject, command: str) -> None:
    few, many = (cost_of(thing, command, others, in_bytes=False) for others in (10, 110))
    assert 20 < few <= many <= few + 20
    few, many = (cost_of(thing, command, others, in_bytes=True) for others in (10, 1_000))
    assert many < few + 16_000, "a dict of a thousand has 36 kB"


def test_a_host_that_comes_later_leads_to_the_spare_backend_of_its_pool() -> None:
    snapshot = listed((ingress_of("a", "a"), *(each(text) for each in (service_of, slice_of) for text in NAMES)))
    desired = Desired(snapshot, IngressPlanner(Setting()), LAYOUT, "PEM")
    desired.update(snapshot.take_touched(), 0.0)
    live = replace(desired.build_configuration(FOLDER), spares=name_spares(0))
    for text in ("b", "c"):
        snapshot.apply(Upserted(ingress_of(text, "b")))
        change = desired.find_change(live, desired.update(snapshot.take_touched(), 0.0))
        record_change(live, change)
        (spare,) = live.placed.values()
        assert [each.split()[-1] for each in change.commands if "prefixes" in each] == [spare]
