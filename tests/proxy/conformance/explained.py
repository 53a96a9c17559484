"""Asks `vipwire explain` about every packet of the suite: its answer must match the packet's fate.

A `Witness` runs beside a proxy, reads the same manifests and kernel with the functions of vipwire.inspect, and shares
nothing with the proxy. Reading everything for each probe would take longer than the probes, so it reads objects after
writes, and the kernel when something may have changed it. It reads again before a disagreement counts, because other
programs change the kernel too. Without an `Explainer`, the plan alone counts, while the mode's proxy runs.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tests.proxy.conformance.mode import Mode
from tests.proxy.conformance.proxy import Answer
from tests.proxy.conformance.verdict import answering, disagreement, page_disagreement

from vipwire.config.configuration import Config
from vipwire.config.flags import build_config, parse_flags
from vipwire.inspect.explain.explanation import Agreement, Explanation, compare_kernel_with_plan, explain_packet
from vipwire.inspect.explain.packet import read_packet
from vipwire.inspect.explain.routes import find_interface_towards, find_source_towards
from vipwire.inspect.node.family_view import EjectedUntil, FamilyView
from vipwire.inspect.node.situation import (
    Kernel,
    Situation,
    read_drained,
    read_ejected,
    read_machine_addresses,
    with_observed_rules,
)
from vipwire.inspect.node.slow_start import adopt_weights
from vipwire.inspect.node.source import node_name
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire.kube.manifests.source import Inventory, ManifestSource, diff_inventories, list_by_kind
from vipwire.linux.host.addresses import select_global_addresses
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, format_endpoint, parse_address
from vipwire.plan.node import NodePlan
from vipwire.plan.planner import Planner
from vipwire.plan.resolve import Packet
from vipwire.proxy_daemon.sync.node_plan import build_node_plan
from vipwire.reconcile.backend import Rendered
from vipwire.watched_objects.event import Kind, Object
from vipwire.watched_objects.store import Store
from vipwire_lab.cluster.outcome import ProbeResult, Target

Inside = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Question:
    """A future connection and its explanation, if any; its `age` in seconds."""

    source: str
    target: Target
    before: Explanation | None
    age: float = 0.0


class Witness:
    """Asks `explain` on one node. `inside` enters its network namespace; `flags` are its proxy's."""

    asked: ClassVar[Counter[str]] = Counter()
    """Number of judged answers by the mode's name."""

    def __init__(self, inside: Inside, flags: Sequence[str], mode: Mode) -> None:
        self._inside, self._mode = inside, mode
        self._config: Config = build_config(parse_flags(flags)).config
        self._objects: _Objects | None = None
        self._kernel: Kernel | None = None
        self._situations: dict[Family, Situation] = {}
        self._routes: dict[tuple[str, Target], Packet] = {}
        self._sources: dict[Address, Address | None] = {}
        self._known: dict[Packet, Explanation] = {}
        self._since: dict[Packet, float] = {}

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def written(self) -> None:
        """Read written manifests at once, because the next ones may be unreadable."""
        if self._objects is None:
            self._objects = _Objects(self._config)
        self._objects.read()
        self.outdated()

    def outdated(self) -> None:
        """Forget the kernel's state, which may have changed."""
        for known in (self._situations, self._routes, self._known, self._since, self._sources):
            known.clear()

    def ask(self, source: str, target: Target) -> Question:
        """Ask for the fate of a connection."""
        known = self._explain(source, target)
        return Question(source, target, known, time.monotonic() - self._since[known.packet] if known else 0.0)

    def judge(self, question: Question, results: Sequence[ProbeResult], *, runs: bool) -> None:
        """Compare with the results; fail if `explain` is wrong both before and after them. `runs`: the proxy runs."""
        before = question.before
        if before is None or (before.walk is None and not runs):
            return
        Witness.asked[self._config.proxy_mode] += 1
        after = self._explain(question.source, question.target, anew=True) if _remembers(before) else None
        relayed = self._mode.relays
        if disagreement(before, results, after, question.age, relayed=relayed):
            now = self._second_look(question)
            words = disagreement(now, results, now if _remembers(now) else None, relayed=relayed)
            assert not words, _story(question, words, now, results)

    def judge_page(self, question: Question, page: Answer) -> None:
        """Compare with a health check node port's answer; fail if `explain` is wrong both before and after it."""
        if question.before is None:
            return
        Witness.asked[self._config.proxy_mode] += 1
        if page_disagreement(question.before, page):
            now = self._second_look(question)
            words = page_disagreement(now, page)
            assert not words, _story(question, words, now, [page])

    def answering(self, question: Question) -> frozenset[Address]:
        """Return the answering addresses once everything written is in the kernel; fail without any."""
        Witness.asked[self._config.proxy_mode] += 1
        said = question.before
        if said is None or compare_kernel_with_plan(said)[0] is Agreement.OTHERWISE:
            said = self._second_look(question)
        return answering(said)

    def _second_look(self, question: Question) -> Explanation:
        assert self._objects is not None
        self._objects.read()
        self.outdated()
        found = self._explain(question.source, question.target)
        assert found is not None
        return found

    def _explain(self, source: str, target: Target, *, anew: bool = False) -> Explanation | None:
        with self._inside():
            if self._objects is None:
                return None
            situation = self._look(self._objects, Family.IPV6 if ":" in target.address else Family.IPV4)
            packet = self._packet(situation, source, target)
            known = self._known.get(packet)
            if known is None or anew:
                made = explain_packet(situation, packet, self._source_towards)
                if made is None:
                    return None
                self._known[packet], self._since[packet] = made, time.monotonic()
                known = made
            return known

    def _packet(self, situation: Situation, source: str, target: Target) -> Packet:
        """Read the packet as the command does."""
        known = self._routes.get((source, target))
        if known is None:
            destination = f"{format_endpoint(parse_address(target.address), target.port)}/{target.protocol.label}"
            known = read_packet(situation, source, destination)
            if not known.from_node:
                known = known._replace(interface=find_interface_towards(known.source))
            self._routes[source, target] = known
        return known

    def _source_towards(self, address: Address) -> Address | None:
        """Ask the node's routes once: each explanation would ask them again."""
        if address not in self._sources:
            with self._inside():
                self._sources[address] = find_source_towards(address)
        return self._sources[address]

    def _look(self, objects: "_Objects", family: Family) -> Situation:
        if family not in self._situations:
            if self._kernel is None:
                self._kernel = Kernel(self._config)
            self._situations[family] = objects.situation(family, self._kernel)
        return self._situations[family]


def _remembers(explanation: Explanation) -> bool:
    """Report whether earlier connections of the client decide."""
    return explanation.action is not None and explanation.action.affinity_seconds is not None


def _story(question: Question, words: str, explanation: Explanation, heard: Iterable[object]) -> str:
    walk = explanation.walk
    steps = [f"  {step.place}: {step.text} -> {step.effect}" for step in walk.steps] if walk else ["  the plan alone"]
    seen = [f"  {number} times {each}" for each, number in Counter(map(str, heard)).items()]
    headline = f"explain is not true: {question.source} to {question.target}: {words}"
    return "\n".join([headline, f"plan: {explanation.outcome}", *steps, "packets:", *seen])


class _Objects:
    """The manifests' objects and plans, kept up to date as in a proxy."""

    def __init__(self, config: Config) -> None:
        self._config, self._name = config, node_name(config)
        self._source = ManifestSource(map(Path, config.manifests), MANIFESTS)
        self._inventory: Inventory[Kind, Object] | None = None
        self._store = Store()
        self._planned: dict[Family, _Planned] = {}
        self._dirty: dict[Family, set[ObjectName]] = {family: set() for family in Family}

    def read(self) -> None:
        """Read what was written since the last call."""
        before, self._inventory = self._inventory, self._source.read_inventory()
        events = list_by_kind(self._inventory, Kind) if before is None else diff_inventories(before, self._inventory)
        for event in events:
            self._store.apply(event)
        names = self._store.take_touched()
        for dirty in self._dirty.values():
            dirty.update(names)

    def situation(self, family: Family, kernel: Kernel | None) -> Situation:
        """Plan the changes, and read the kernel if the mode can explain it."""
        config, store = self._config, self._store
        addresses, vips = read_machine_addresses()
        machine = select_global_addresses(addresses)
        held, drained = store.nodes.get(self._name), read_drained(config)
        node = build_node_plan(config, family, self._name, held, store.service_cidrs, machine, drained)
        planned = self._planned.setdefault(family, _Planned(node))
        self._dirty[family] |= planned.eject(read_ejected(config)) & store.services.keys()
        planned.update(node, sorted(self._dirty[family]), store)
        self._dirty[family].clear()
        made = Situation(config, self._name, store, addresses, (planned.side(kernel),), vips)
        return replace(made, sides=tuple(adopt_weights(side, store, made.own_addresses) for side in made.sides))


class _Planned:
    """One family's plans and rendered objects."""

    def __init__(self, node: NodePlan) -> None:
        self._planner = Planner(node)
        self._rendered: dict[ObjectName, Rendered[Any, Any]] = {}

    def eject(self, ejected: EjectedUntil) -> set[ObjectName]:
        """Adopt the proxy's ejections; return the Services to plan."""
        before = self._planner.ejected_elsewhere
        now = {service: frozenset(each) for service, each in ejected.items()}
        self._planner.ejected_elsewhere = now
        return {name for name in {*before, *now} if before.get(name) != now.get(name)}

    def update(self, node: NodePlan, names: Iterable[ObjectName], store: Store) -> None:
        if self._planner.node != node:
            self._planner.move(node, store.view)
            self._rendered.clear()
        for changed in self._planner.update(names, store.view):
            self._rendered.pop(changed, None)

    def side(self, kernel: Kernel | None) -> FamilyView:
        """Read the kernel. A mode recognises rendered objects only, so rendering comes first."""
        node, plans = self._planner.node, dict(self._planner.plans)
        mode = kernel.modes.get(node.family) if kernel else None
        explainer = kernel.explainers.get(node.family) if kernel else None
        if mode is None or explainer is None:
            return FamilyView(node.family, node, plans)
        self._rendered.update((name, mode.render(plan)) for name, plan in plans.items() if name not in self._rendered)
        seen = with_observed_rules(FamilyView(node.family, node, {}), mode, explainer)
        assert not seen.obstacle, seen.obstacle
        return replace(seen, plans=plans, rendered={name: self._rendered[name] for name in plans})
