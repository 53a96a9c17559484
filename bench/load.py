"""(1) Everything at once, from decoded API objects to the kernel. (4) The same start on a programmed kernel."""

import gc
import time

from bench.cluster import converted, decoded, encoded
from bench.options import Options
from bench.pipe import Pipe, memory
from bench.report import Figure

from vipwire.process_lifecycle import cyclic_garbage
from vipwire.watched_objects.event import Kind, Listed

TITLE = "from decoded objects to the kernel"


def measure(options: Options) -> list[Figure]:
    cyclic_garbage.collect_rarely()
    services, slices = encoded(options.services, options.endpoints)
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    sources = decoded(services, slices)
    decoding = time.perf_counter() - began
    del services, slices
    gc.collect()
    gc.freeze()
    cpu, began = time.process_time(), time.perf_counter()
    found = converted(sources)
    converting = time.perf_counter() - began
    events = (Listed(Kind.SERVICE, tuple(found[0])), Listed(Kind.ENDPOINT_SLICE, tuple(found[1])))
    pipe = Pipe()
    pipe.apply(events)
    report = pipe.sync()
    total, used = time.perf_counter() - began, time.process_time() - cpu
    phases, (now, _) = pipe.phases, memory()
    del sources, found, events
    most = 1.5 if (options.services, options.endpoints) == (10_000, 10) else None
    return [
        Figure("total", total, "s", most),
        Figure("total, CPU", used, "s", most),
        Figure("  convert", converting, "s"),
        Figure("  store", phases.store, "s"),
        Figure("  plan", phases.plan, "s"),
        Figure("  render", phases.render, "s"),
        Figure("  compare, encode, commit", phases.sync, "s"),
        Figure("  of which the kernel", phases.kernel, "s"),
        Figure("total without the kernel", total - phases.kernel, "s"),
        Figure("total / the kernel's part", total / phases.kernel, "ratio"),
        Figure("kernel objects", report.added, "number"),
        Figure("transaction", report.size / 1e6, "MB"),
        Figure("decoding the JSON before it (not in the total)", decoding, "s"),
        Figure("memory of this process", now, "MB"),
        *_restart(pipe),
    ]


def _restart(loaded: Pipe) -> list[Figure]:
    """Restart on a programmed kernel, with the same plans; conversion is in the daemon's figure."""
    services = tuple(loaded.store.services.values())
    slices = tuple(piece for service in services for piece in loaded.store.view(service.name)[1])
    cpu, began = time.process_time(), time.perf_counter()
    pipe = Pipe()
    pipe.apply((Listed(Kind.SERVICE, services), Listed(Kind.ENDPOINT_SLICE, slices)))
    report = pipe.sync()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    return [
        Figure("start on this kernel: plan, read, compare", took, "s", 2.0),
        Figure("start on this kernel, CPU", used, "s", 2.0),
        Figure("  read and compare", pipe.phases.sync, "s"),
        Figure("  written", report.added + report.changed + report.removed, "number", 0),
    ]
