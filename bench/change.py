"""(2) One Service's change from the event to the committed transaction; (5) many endpoints at once, in process."""

import gc
import statistics
import time
from dataclasses import replace

import msgspec
from bench.cluster import new_address, objects
from bench.options import Options
from bench.pipe import Pipe
from bench.report import Figure

from vipwire.model.service import EndpointSlice
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Upserted

TITLE = "one Service changes, from the event to the committed transaction"
BURST = 1_000
MOST_MS = 3.0
MOST_RATIO = 1.5

Changes = dict[str, list[float]]


def measure(options: Options) -> list[Figure]:
    cyclic_garbage.collect_rarely()
    medians: dict[int, dict[str, float]] = {}
    figures: list[Figure] = []
    for size in options.sizes:
        cluster = _Cluster(size, options.endpoints)
        times = cluster.changes(options.samples)
        medians[size] = {name: statistics.median(values) for name, values in times.items()}
        for name, values in times.items():
            ninth = statistics.quantiles(values, n=10)[8]
            figures.append(Figure(f"{name} at {size:,} Services", medians[size][name], "ms", MOST_MS))
            figures.append(Figure("  nine of ten within", ninth, "ms"))
        if size >= BURST:
            figures += cluster.burst()
        cluster.pipe.backend.delete()
        cluster.pipe.backend.close()
        del cluster
        gc.collect()
    small, large = medians[options.sizes[0]], medians[options.sizes[-1]]
    between = f"at {options.sizes[-1]:,} / at {options.sizes[0]:,} Services"
    figures += [Figure(f"{name}: {between}", large[name] / small[name], "ratio", MOST_RATIO) for name in small]
    return figures


class _Cluster:
    """A loaded kernel, and its slices."""

    def __init__(self, services: int, endpoints: int) -> None:
        self.pipe = Pipe()
        self._endpoints = endpoints
        self._services, self._slices = objects(services, endpoints)
        listed = Listed(Kind.SERVICE, tuple(self._services)), Listed(Kind.ENDPOINT_SLICE, tuple(self._slices))
        self.pipe.apply(listed)
        self.pipe.sync()

    def changes(self, samples: int) -> Changes:
        """Measure each kind of change `samples` times, in ms. Each leaves the cluster almost unchanged."""
        times: Changes = {
            "endpoint replaced": [],
            "endpoint removed": [],
            "endpoint added": [],
            "Service added": [],
            "Service deleted": [],
        }
        count = len(self._slices)
        for index in range(samples):
            old = self._slices[index * 7919 % count]
            replaced = _replaced(old, index)
            fewer = replace(replaced, endpoints=replaced.endpoints[:-1])
            self._slices[index * 7919 % count] = replaced
            service, piece = (part[0] for part in objects(1, self._endpoints, first=count + index))
            times["endpoint replaced"].append(self._timed(Upserted(replaced)))
            times["endpoint removed"].append(self._timed(Upserted(fewer)))
            times["endpoint added"].append(self._timed(Upserted(replaced)))
            times["Service added"].append(self._timed(Upserted(service), Upserted(piece)))
            gone = Deleted(Kind.SERVICE, service.name), Deleted(Kind.ENDPOINT_SLICE, piece.name)
            times["Service deleted"].append(self._timed(*gone))
        return times

    def burst(self) -> list[Figure]:
        """Replace one endpoint of each of 1,000 Services: all together, and one after the other."""
        count = len(self._slices)
        figures = []
        for what, step in ((f"{BURST:,} endpoints replaced, in one transaction", BURST), ("  one by one", 1)):
            numbers = [index * 7919 % count for index in range(BURST)]
            events = [Upserted(_replaced(self._slices[number], 10_000 + number)) for number in numbers]
            cpu, began = time.process_time(), time.perf_counter()
            for at in range(0, BURST, step):
                self.pipe.apply(events[at : at + step])
                self.pipe.sync()
            took, used = time.perf_counter() - began, time.process_time() - cpu
            figures.append(Figure(f"{what}, at {count:,} Services", took, "s", 2.0))
            figures.append(Figure("  CPU", used, "s"))
            self.pipe.apply(Upserted(self._slices[number]) for number in numbers)
            self.pipe.sync()
        return figures

    def _timed(self, *events: Event) -> float:
        began = time.perf_counter()
        self.pipe.apply(events)
        report = self.pipe.sync()
        took = time.perf_counter() - began
        if not report.size:
            raise SystemExit("a change that changed nothing was measured")
        return took * 1e3


def _replaced(piece: EndpointSlice, number: int) -> EndpointSlice:
    first, *others = piece.endpoints
    return replace(piece, endpoints=(msgspec.structs.replace(first, address=new_address(number)), *others))
