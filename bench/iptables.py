"""iptables mode beside kube-proxy's rules: the same Services, both variants of the tool, one run.

kube-proxy's side is its text (see `iptables_rival`), loaded by one iptables-restore, without the time of making the
text. Loading grows faster than its size: the largest of `--rivals` counts. Figures include CPU seconds of the tool
and the kernel, which are meaningful on a busy machine too.

    python -m bench iptables --variants legacy --services 1000 --endpoints 5 --rounds 5

leaves out the nft variant, whose rival takes nine minutes at 5,000 Services.
"""

import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec
from bench import iptables_rival
from bench.cluster import POD_CIDR, new_address, node_plan, objects
from bench.options import Options
from bench.report import Figure

from vipwire.model.net import Family
from vipwire.model.service import EndpointSlice, Service
from vipwire.modes.iptables.access.tool_access import LockWait
from vipwire.modes.iptables.driver import build_rule_access
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.rules.names import ENTRY, NAT, SERVICES, Key, Rules
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.tree import Branch, Dispatch, build_dispatches
from vipwire.modes.xtables.tool import WAIT_SECONDS, IptablesTool, Variant
from vipwire.plan.planner import Planner
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.reconcile.reconciler import Reconciler, Report
from vipwire.watched_objects.store import CROWD

TITLE = "iptables mode and kube-proxy's own text"
SETTINGS = RuleSettings(counters=False)
CHANGES = 20
MOST_PYTHON_MS = 5.0
SMALL = 100
REST_SECONDS = 3.0
"""The kernel frees deleted rules in the background, which would count as the rival's time."""


class TimedTool(IptablesTool):
    """Sums the run time of the tools, including the kernel's work."""

    seconds = 0.0

    def save(self, *tables: str, counted: bool = False) -> str:
        began = time.perf_counter()
        try:
            return super().save(*tables, counted=counted)
        finally:
            self.seconds += time.perf_counter() - began

    def restore(self, text: Iterable[str], wait: int = WAIT_SECONDS) -> None:
        text = "".join(text)
        began = time.perf_counter()
        super().restore(text, wait)
        self.seconds += time.perf_counter() - began


class Proxy:
    """Planner, reconciler and backend, and the objects they work on."""

    def __init__(
        self, variant: Variant, services: list[Service], slices: list[EndpointSlice], *, by_tools: bool = False
    ) -> None:
        self.tool = TimedTool(Family.IPV4, variant, "a bench")
        access = build_rule_access(self.tool, LockWait(), by_tools=by_tools)
        self.backend = IptablesBackend(self.tool, SETTINGS, writer=access)
        self._slices = {piece.service: piece for piece in slices}
        self._services = {service.name: service for service in services}
        crowded = sum(len(piece.endpoints) for piece in slices) > CROWD
        self._planner = Planner(replace(node_plan(), crowded=crowded))
        self.reconciler: Reconciler[Key, Rules] = Reconciler(self.backend)
        self.reconciler.desire_node(self.backend.render_node(self._planner.node))

    def first(self) -> float:
        """Plan, render and write everything; return the seconds."""
        began = time.perf_counter()
        self._plan(*self._services)
        self.reconciler.sync()
        return time.perf_counter() - began

    def change(self, number: int) -> tuple[float, float]:
        """Replace an endpoint of one Service; return the seconds, and those outside the tool."""
        name = list(self._slices)[number * 7919 % len(self._slices)]
        piece = self._slices[name]
        first, *others = piece.endpoints
        other = msgspec.structs.replace(first, address=new_address(number))
        self._slices[name] = replace(piece, endpoints=(other, *others))
        self.tool.seconds, began = 0.0, time.perf_counter()
        self._plan(name)
        self.reconciler.sync()
        took = time.perf_counter() - began
        return took, took - self.tool.seconds

    def _plan(self, *names: object) -> None:
        changes = self._planner.update(names, lambda name: (self._services[name], [self._slices[name]]))  # type: ignore[arg-type]
        for name, change in changes.items():
            self.reconciler.desire(name, change.new)


def cpu() -> float:
    """Return the CPU seconds of this process and of ended tools."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)


def measure(options: Options) -> list[Figure]:
    cyclic_garbage.collect_rarely()
    figures = [*_passed(options)]
    largest = options.rivals[-1]
    variants = [Variant(name) for name in options.variants]
    for variant in variants:
        figures += _beside_kube_proxy(variant, largest, options.endpoints)
    for variant in variants:
        figures += _changes(variant, options)
        if variant is Variant.NFT:
            figures += _changes(variant, options, by_tools=True)
    return figures


def _beside_kube_proxy(variant: Variant, count: int, endpoints: int) -> list[Figure]:
    services, slices = objects(count, endpoints)
    proxy = Proxy(variant, services, slices)
    worked = -cpu()
    took = proxy.first()
    worked += cpu()
    tool = proxy.tool.seconds
    proxy.backend.delete()
    proxy.backend.close()
    text = iptables_rival.text(services, slices, POD_CIDR)
    time.sleep(REST_SECONDS)
    rival = TimedTool(Family.IPV4, variant, "a bench")
    rival_worked = -cpu()
    rival.restore(text)
    rival_worked += cpu()
    leftover = IptablesBackend(rival, SETTINGS)
    leftover.delete()
    leftover.close()
    del proxy
    gc.collect()
    of = f"iptables-{variant.value}, {count:,} Services"
    return [
        Figure(f"{of}: first sync", took, "s"),
        Figure("  of which the tool and the kernel", tool, "s"),
        Figure("  kube-proxy's text, one iptables-restore", rival.seconds, "s"),
        Figure("  first sync / kube-proxy's text", took / rival.seconds, "ratio", MOST[variant]),
        Figure("  first sync, CPU", worked, "s"),
        Figure("  kube-proxy's text, CPU", rival_worked, "s"),
        Figure("  first sync / kube-proxy's text, CPU", worked / rival_worked, "ratio"),
    ]


MOST = {Variant.NFT: 0.2, Variant.LEGACY: 1.0}


def _changes(variant: Variant, options: Options, *, by_tools: bool = False) -> list[Figure]:
    proxy = Proxy(variant, *objects(options.services, options.endpoints), by_tools=by_tools)
    first, first_cpu = _timed(proxy.first)
    first_tool = proxy.tool.seconds
    started = cpu()
    times = [proxy.change(number) for number in range(CHANGES)]
    change_cpu = (cpu() - started) / CHANGES
    proxy.reconciler.distrust()
    reports: list[Report[Key]] = []
    read, read_cpu = _timed(lambda: reports.append(proxy.reconciler.sync()))
    (report,) = reports
    proxy.backend.delete()
    proxy.backend.close()
    whole, ours = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    of = f"iptables-{variant.value}{' by its programs' * by_tools}, {options.services:,} Services"
    python = (
        [] if _direct(variant, by_tools=by_tools) else [Figure("    of which Python", ours, "ms", MOST_PYTHON_MS)]
    )
    return [
        Figure(f"{of}: first sync", first, "s"),
        Figure("  CPU", first_cpu, "s"),
        Figure("  of which the tool and the kernel", first_tool, "s"),
        Figure("  one endpoint replaced", whole, "ms"),
        Figure("    CPU", change_cpu * 1e3, "ms"),
        *python,
        Figure("  reading it all and comparing", read, "s"),
        Figure("    CPU", read_cpu, "s"),
        Figure("    written", report.added + report.changed + report.removed, "number", 0),
    ]


def _direct(variant: Variant, *, by_tools: bool) -> bool:
    """Report whether vipwire writes without tools: then the kernel's time counts as its own."""
    return variant is Variant.NFT and not by_tools


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of `work`."""
    began, used = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - began, cpu() - used


def _passed(options: Options) -> list[Figure]:
    """Return the mean number of rules that a new connection to a ClusterIP passes."""
    means = {count: _mean(count, options.endpoints) for count in (SMALL, options.services)}
    ratio = means[options.services] / means[SMALL]
    flat = options.services / 2
    return [
        *(
            Figure(f"rules a new connection passes, {count:,} Services", mean, "number")
            for count, mean in means.items()
        ),
        Figure("  of kube-proxy's KUBE-SERVICES alone", flat, "number"),
        Figure(f"  {options.services:,} Services / {SMALL} Services", ratio, "ratio", 2.0),
    ]


def _mean(count: int, endpoints: int) -> float:
    """In the tree by following it; behind it one for masquerading, half the endpoints, the endpoint's two.

    Then one in POSTROUTING, and in FORWARD four jumps and three rules of KUBE-FORWARD.
    """
    services, slices = objects(count, endpoints)
    proxy = Planner(node_plan())
    by_name = {service.name: service for service in services}
    pieces = {piece.service: [piece] for piece in slices}
    backend = IptablesBackend(TimedTool(Family.IPV4, Variant.NFT, "a bench"), SETTINGS)
    backend.render_node(proxy.node)
    dispatch = build_dispatches(Family.IPV4, tree=True)[NAT, SERVICES]
    entries: dict[int, Rules] = {}
    for change in proxy.update(by_name, lambda name: (by_name[name], pieces[name])).values():
        if change.new is not None:
            own = backend.render(change.new).own
            entries |= {
                int(key.detail): rules for key, rules in own.items() if key.kind == ENTRY and key.table == NAT
            }
    backend.close()
    dispatch.load(entries)
    behind = 1 + (endpoints + 1) / 2 + 2 + 1 + 4 + 3
    return statistics.mean(_place(dispatch, code) for code in entries) + behind


def _place(dispatch: Dispatch, code: int) -> int:
    node, passed = dispatch.tree, 1
    while isinstance(node, Branch):
        value = code >> 2 * node.at & 3
        passed += sum(child is not None for child in node.children[: value + 1])
        child = node.children[value]
        if child is None:
            raise SystemExit("an entry is not in its tree")
        node = child
    return passed + node.codes.index(code) + 1
