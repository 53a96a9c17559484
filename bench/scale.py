"""Sizes beyond the promised one, to see the growth. Each needs its memory: 100,000 Services take 2 GB."""

import gc
import statistics
import time
from dataclasses import replace

import msgspec
from bench.cluster import converted, decoded, encoded, new_address
from bench.options import Options
from bench.pipe import Pipe, memory
from bench.report import Figure

from vipwire.model.service import EndpointSlice
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.watched_objects.event import Kind, Listed, Upserted

TITLE = "everything at once, a restart, and one change"
CHANGES = 50
MOST = {(44_000, 10): 8.0, (5_000, 50): 6.0}
"""Promised seconds for everything at once, by Services and endpoints of each."""
MOST_MS = 3.0


def measure(options: Options) -> list[Figure]:
    cyclic_garbage.collect_rarely()
    sources = decoded(*encoded(options.services, options.endpoints))
    gc.collect()
    gc.freeze()
    began, started = time.perf_counter(), time.process_time()
    services, slices = converted(sources)
    converting = time.perf_counter() - began
    del sources
    listed = Listed(Kind.SERVICE, tuple(services)), Listed(Kind.ENDPOINT_SLICE, tuple(slices))
    pipe, began = Pipe(), time.perf_counter()
    pipe.apply(listed)
    report = pipe.sync()
    loading, used = time.perf_counter() - began, time.process_time() - started
    now, _ = memory()
    times = [_change(pipe, slices[index * 7919 % len(slices)], index) for index in range(CHANGES)]
    pipe.apply(listed)
    pipe.sync()
    again, began, cpu = Pipe(), time.perf_counter(), time.process_time()
    again.apply(listed)
    found = again.sync()
    restart, reused = time.perf_counter() - began, time.process_time() - cpu
    most = MOST.get((options.services, options.endpoints))
    return [
        Figure("total", converting + loading, "s", most),
        Figure("total, CPU", used, "s", most),
        Figure("  convert", converting, "s"),
        Figure("  plan and render", pipe.phases.plan + pipe.phases.render, "s"),
        Figure("  the kernel", pipe.phases.kernel, "s"),
        Figure("kernel objects", report.added, "number"),
        Figure("transaction", report.size / 1e6, "MB"),
        Figure("memory of this process, objects and belief", now, "MB"),
        Figure("one endpoint replaced", statistics.median(times) * 1e3, "ms", MOST_MS),
        Figure("start on this kernel", restart, "s"),
        Figure("  CPU", reused, "s"),
        Figure("  read and compare", again.phases.sync, "s"),
        Figure("  written", found.added + found.changed + found.removed, "number", 0),
    ]


def _change(pipe: Pipe, piece: EndpointSlice, number: int) -> float:
    first, *others = piece.endpoints
    moved = msgspec.structs.replace(first, address=new_address(number))
    began = time.perf_counter()
    pipe.apply([Upserted(replace(piece, endpoints=(moved, *others)))])
    pipe.sync()
    return time.perf_counter() - began
