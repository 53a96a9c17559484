"""The same cluster in kube-proxy's layout by `nft -f`, beside vipwire's: everything, and one change.

Of a change only `nft` counts; kube-proxy's own work before it is extra.
"""

import statistics
import subprocess
import time
from dataclasses import replace

import msgspec
from bench import kubeproxy
from bench.cluster import NODE_ADDRESS, POD_CIDR, SERVICE_CIDRS, new_address, objects
from bench.options import Options
from bench.pipe import Pipe
from bench.report import Figure

from vipwire.model.service import EndpointSlice
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.watched_objects.event import Kind, Listed, Upserted

TITLE = "beside kube-proxy's layout by nft -f"
CHANGES = 20


def measure(options: Options) -> list[Figure]:
    cyclic_garbage.collect_rarely()
    return [figure for size in options.rivals for figure in _beside(size, options.endpoints)]


def _beside(size: int, endpoints: int) -> list[Figure]:
    services, slices = objects(size, endpoints)
    text = "".join(kubeproxy.script(services, slices, NODE_ADDRESS, POD_CIDR, SERVICE_CIDRS))
    theirs = nft(text)
    theirs_one = statistics.median(
        nft("".join(kubeproxy.replaced(services[index], _replaced(slices[index], index)))) for index in range(CHANGES)
    )
    nft(f"delete table {kubeproxy.TABLE}")
    pipe = Pipe()
    began = time.perf_counter()
    pipe.apply((Listed(Kind.SERVICE, tuple(services)), Listed(Kind.ENDPOINT_SLICE, tuple(slices))))
    pipe.sync()
    ours = time.perf_counter() - began
    times = []
    for index in range(CHANGES):
        began = time.perf_counter()
        pipe.apply([Upserted(_replaced(slices[index], index))])
        pipe.sync()
        times.append(time.perf_counter() - began)
    pipe.backend.delete()
    pipe.backend.close()
    ours_one = statistics.median(times)
    return [
        Figure(f"{size:,} Services, everything: nft -f", theirs, "s"),
        Figure("  ours, from objects", ours, "s"),
        Figure("  ours / theirs", ours / theirs, "ratio", 1),
        Figure(f"{size:,} Services, one endpoint: nft -f", theirs_one * 1e3, "ms"),
        Figure("  ours, from the event", ours_one * 1e3, "ms"),
        Figure("  ours / theirs", ours_one / theirs_one, "ratio", 1),
    ]


def nft(text: str) -> float:
    """Run a script; return its seconds."""
    began = time.perf_counter()
    done = subprocess.run(["nft", "-f", "-"], input=text, text=True, check=False, stderr=subprocess.PIPE)
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"nft refuses kube-proxy's rules: {done.stderr[:500]}")
    return took


def _replaced(piece: EndpointSlice, number: int) -> EndpointSlice:
    first, *others = piece.endpoints
    return replace(piece, endpoints=(msgspec.structs.replace(first, address=new_address(number)), *others))
