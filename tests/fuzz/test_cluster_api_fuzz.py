"""Whatever is sent to an API server whose controllers run: an answer that is none of its faults, soon, and all go on.

The cluster lives through all examples, so that what one leaves behind meets the next. VIPWIRE_FUZZ_EXAMPLES says how
many there are: `VIPWIRE_FUZZ_EXAMPLES=100000 pytest tests/fuzz/test_cluster_api_fuzz.py`.
"""

import asyncio
import ipaddress
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.up.unit.cluster_here import Here, cluster
from tests.up.unit.controllers_here import clock

from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.objects.schema import Field, Shape, Type
from vipwire_up.controllers.allocation.cidrs import ServiceCidrs
from vipwire_up.controllers.allocation.repair import AddressRepair
from vipwire_up.controllers.balancers import Balancers
from vipwire_up.controllers.endpoints.controller import EndpointController
from vipwire_up.controllers.garbage_collector import GarbageCollector
from vipwire_up.controllers.hooks import Ranges, build_hooks, create_first_service_cidr
from vipwire_up.readiness_probes.probes import build_local_probes
from vipwire_up.watchdog.guard import Guard

EXAMPLES = int(os.environ.get("VIPWIRE_FUZZ_EXAMPLES", "250"))
SLOWEST = 10.0
"""Seconds of computing that an answer may take."""

NUMBERS = st.sampled_from(
    [*(-(2**63), -(2**31), -1, 0, 1, 80, 65535, 65536, 80800, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63), 0.5, 1e300]
)
TIMES = st.sampled_from(
    [
        *("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
        *("2026-01-01T00:00:00.123456Z", "2026-01-01T11:00:00Z", "2026-01-01", "", "never", "2016-12-31T23:59:60Z"),
    ]
)
QUANTITIES = st.sampled_from(
    ["1", "-1", "100m", "1e999", "-1e999", "1e-999", "0", "NaN", "inf", "9" * 300, "1Ei", ""]
)
TEXTS = st.sampled_from(
    [
        *("", "a", "A", "web", "None", "default", "10.96.0.9", "10.0.0.1", "::1", "fd00::1", "fd00:0::1", "0.0.0.0"),
        *(
            "10.0.0.0/8",
            "fd00::/64",
            "::/0",
            "10.0.0.1/33",
            "\x00",
            "\x1b[2J",
            "a\r\nb: c",
            "ä",
            "x" * 300,
            "/",
            "..",
        ),
        *("True", "Ready", "Running", "v1", "Pod", "Service", "TCP", "%2F", "*", "*.a.example", "\ud7ff\U0010ffff"),
    ]
)
KEYS = st.sampled_from(["app", "kubernetes.io/service-name", "vipwire.io/address", "cpu", "a b", "", "x/y/z", "é"])
NAMES = st.sampled_from(["web", "a", "kubernetes", "10.96.0.9", "fd00:10:96::9", "default", "n"])
UNTYPED = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=3),
    max_leaves=8,
)
FAULTS = 500


def scalar(kind: Type) -> st.SearchStrategy[Any]:
    """Values of a type without parts, with those at the ends of it."""
    name = kind.name
    if name in ("int32", "int64"):
        return NUMBERS
    if name == "intstr":
        return NUMBERS | TEXTS
    if name == "bool":
        return st.booleans()
    return {"quantity": QUANTITIES, "time": TIMES, "microtime": TIMES}.get(name, TEXTS)


def part(known: Field, depth: int) -> st.SearchStrategy[Any]:
    """Values of a field: mostly those that it may have."""
    made = st.sampled_from(known.one_of) if known.one_of else valued(known.type, depth)
    if known.range:
        made = st.integers(known.range[0], min(known.range[1], known.range[0] + 9)) | made
    return st.one_of(made, made, made, made, UNTYPED)


def valued(kind: Type, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a type."""
    if kind.shape is Shape.OBJECT and depth < 6:
        needed = {name: part(f, depth + 1) for name, f in kind.fields.items() if f.required}
        others = {name: part(f, depth + 1) for name, f in kind.fields.items() if not f.required}
        return st.fixed_dictionaries(needed, optional=others)
    if kind.shape is Shape.LIST and kind.element is not None:
        return st.lists(valued(kind.element, depth + 1), max_size=2)
    if kind.shape is Shape.MAP and kind.element is not None:
        return st.dictionaries(KEYS, valued(kind.element, depth + 1), max_size=2)
    return UNTYPED if kind.shape in (Shape.ANY, Shape.OBJECT) else scalar(kind)


@st.composite
def objects(draw: st.DrawFn, resource: Resource) -> Any:
    """Bodies of a kind: with a name mostly, and often as somebody would write them."""
    value: dict[str, Any] = draw(valued(resource.type) | st.just({}))
    for name in ("spec", "status", "metadata"):
        if draw(st.integers(0, 3)) == 0:
            value.pop(name, None)
    meta = value.get("metadata")
    kept = {
        key: part for key, part in (meta if isinstance(meta, dict) else {}).items() if draw(st.integers(0, 2)) == 0
    }
    return (
        value
        | {"kind": resource.kind, "apiVersion": resource.api_version}
        | {"metadata": kept | {"name": draw(NAMES)}}
    )


CONTAINER = {"name": "a", "image": "none", "readinessProbe": {"tcpSocket": {"port": 80}}}
SOUND: dict[str, Any] = {
    "Service": {"spec": {"ports": [{"port": 80}], "selector": {"app": "web"}, "type": "LoadBalancer"}},
    "Pod": {
        "metadata": {"labels": {"app": "web"}, "annotations": {"vipwire.io/address": "10.1.0.1"}},
        "spec": {"containers": [CONTAINER], "nodeName": "n"},
    },
    "EndpointSlice": {
        "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": "n"}],
        "ports": [{"port": 80}],
    },
    "Endpoints": {"subsets": [{"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}]},
    "Event": {
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    },
    "Node": {
        "metadata": {"labels": {"topology.kubernetes.io/zone": "a"}},
        "status": {"allocatable": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]},
    },
    "Ingress": {"spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}},
    "Lease": {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}},
    "ServiceCIDR": {"spec": {"cidrs": ["10.97.0.0/24"]}},
    "IPAddress": {"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}}},
}


@st.composite
def nearly_sound(draw: st.DrawFn, resource: Resource) -> Any:
    """Bodies that are right but for a part or two, which have values at the ends of what they may have."""
    value: dict[str, Any] = json.loads(json.dumps(SOUND.get(resource.kind, {})))
    value |= {"kind": resource.kind, "apiVersion": resource.api_version}
    for _ in range(draw(st.integers(0, 2))):
        draw(replaced(value, resource.type))
    name = {"IPAddress": st.sampled_from(["10.96.0.9", "10.97.0.9"])}.get(resource.kind, NAMES)
    meta = value.get("metadata")
    return value | {"metadata": (meta if isinstance(meta, dict) else {}) | {"name": draw(name)}}


@st.composite
def replaced(draw: st.DrawFn, value: Any, kind: Type) -> None:
    """Put something into a field of an object, or of one in it."""
    known: Field = draw(st.sampled_from(sorted(kind.fields.values(), key=lambda each: each.name)))
    below, inner = value.get(known.name), known.type
    if isinstance(below, list) and below and inner.element is not None:
        below, inner = below[0], inner.element
    if isinstance(below, dict) and inner.shape is Shape.OBJECT and draw(st.integers(0, 4)):
        draw(replaced(below, inner))
    else:
        value[known.name] = draw(part(known, 2))


POINTERS = st.lists(
    st.sampled_from(["", "metadata", "spec", "labels", "ports", "0", "-", "~1", "9" * 30, "x"]), max_size=4
)
OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"])},
        optional={
            "path": POINTERS.map(lambda parts: "".join(f"/{part}" for part in parts)),
            "from": POINTERS.map(lambda parts: "".join(f"/{part}" for part in parts)),
            "value": UNTYPED,
        },
    ),
    max_size=5,
)
QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "fieldManager": TEXTS,
        "fieldValidation": st.sampled_from(["Strict", "Warn", "Ignore", "x"]),
        "dryRun": st.sampled_from(["All", "", "x"]),
        "force": st.sampled_from(["true", "x"]),
        "limit": NUMBERS | TEXTS,
        "continue": TEXTS,
        "labelSelector": st.sampled_from(["app=web", "app in (a,", "!app", "a>1", "a<x", "a=b=c", "\x00", "," * 9]),
        "fieldSelector": st.sampled_from(["metadata.name=web", "a", "=", "metadata.name!=", "status.phase=x"]),
        "gracePeriodSeconds": NUMBERS | TEXTS,
        "propagationPolicy": st.sampled_from(["Foreground", "Orphan", "Background", "x"]),
        "includeObject": TEXTS,
    },
)
ACCEPTS = st.sampled_from(
    [
        "",
        "application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "x",
    ]
)


@dataclass(frozen=True)
class Sent:
    """A request."""

    method: str
    path: str
    query: dict[str, Any]
    kind: str
    body: bytes
    accept: str
    user: str


@st.composite
def bodies(draw: st.DrawFn, method: str, resource: Resource) -> tuple[str, bytes]:
    """A media type with a body of it, now and then with a field that stands twice, or damaged."""
    if method == "PATCH":
        kind = draw(
            st.sampled_from(["json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"])
        )
    else:
        kind = draw(st.sampled_from(["json", "json", "json", "yaml", "vnd.kubernetes.protobuf"]))
    sound = st.one_of(nearly_sound(resource), nearly_sound(resource), nearly_sound(resource), objects(resource))
    value = draw(OPERATIONS if kind == "json-patch+json" else sound if method != "DELETE" else UNTYPED)
    if kind == "vnd.kubernetes.protobuf":
        return f"application/{kind}", b"k8s\x00" + draw(st.binary(max_size=60))
    text = json.dumps(value).encode()
    if kind == "yaml" and draw(st.booleans()):
        text = yaml.safe_dump(json.loads(text)).encode()
    flaw = draw(st.integers(0, 19))
    if flaw == 0 and text.startswith(b"{"):
        text = b'{"spec":{},"spec":{"x":1,"x":2},' + text[1:]
    elif flaw == 1:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.binary(max_size=4)) + text[at:]
    elif flaw == 2:
        text = b"[" * draw(st.sampled_from([50, 500, 50_000])) + text
    return f"application/{kind}", text


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """A request to one of all kinds."""
    resource = draw(st.sampled_from(RESOURCES))
    method = draw(st.sampled_from(["POST", "POST", "POST", "PUT", "PATCH", "PATCH", "DELETE", "GET"]))
    inside = (
        f"/namespaces/{draw(st.sampled_from(['default', 'default', 'default', 'web', '']))}"
        if resource.namespaced
        else ""
    )
    path = f"{resource.base}{inside}/{resource.plural}"
    if method != "POST" and draw(st.integers(0, 5)):
        path += f"/{draw(NAMES)}" + draw(st.sampled_from(["", "", "", "/status", "/finalize", "/x"]))
    kind, body = draw(bodies(method, resource)) if method != "GET" else ("", b"")
    user = draw(st.sampled_from(["admin", "admin", "admin", "node", "view", "anonymous"]))
    query = draw(st.just({}) | st.just({}) | QUERIES)
    return Sent(method, path, query, kind, body, draw(st.just("") | ACCEPTS), user)


@dataclass
class Running:
    """A cluster in a thread, with its controllers; what one of them failed at is in `failures`."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    failures: list[str] = field(default_factory=list)
    codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    here: Future[Here] = field(default_factory=Future)
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something in the cluster's thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def live(self, folder: Path) -> None:
        """Run until told to end."""
        async with cluster(folder, make_hooks=lambda store: build_hooks(store, clock, Ranges())) as here:
            await create_first_service_cidr(here.registry, Ranges())
            await here.post("/api/v1/namespaces", {"metadata": {"name": "web"}})
            parts = (
                GarbageCollector(here.registry, self._guard("garbage collection")),
                EndpointController(here.registry, self._guard("endpoints")),
                ServiceCidrs(here.registry, self._guard("ServiceCIDRs")),
                AddressRepair(here.registry, self._guard("IPAddresses")),
                build_local_probes(here.registry, guard=self._guard("probes")),
                Balancers(here.registry, [ipaddress.ip_network("192.0.2.0/28")], self._guard("balancers")),
            )
            self.tasks += [self.loop.create_task(each.run()) for each in parts]
            self.here.set_result(here)
            await self.ending.wait()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    def _guard(self, name: str) -> Guard[Any]:
        def hear(part: str, thing: Hashable, error: Exception, **_: Any) -> None:
            self.failures.append(f"{part} {thing}: {error!r}")

        return Guard(name, hear)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    made = Running()
    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=made.loop.run_until_complete, args=(made.live(Path(folder)),))
        thread.start()
        try:
            made.here.result(60)
            yield made
            told = [f"{method} {code}: {count}" for (method, code), count in sorted(made.codes.items())]
            sys.stdout.write(f"answers: {', '.join(told)}\n")
            assert made.codes["POST", 201] > EXAMPLES // 50  # what is drawn is also what can be stored
        finally:
            made.loop.call_soon_threadsafe(made.ending.set)
            thread.join(60)
            made.loop.close()


async def answered(here: Here, sent: Sent) -> tuple[int, Any]:
    headers = {"X-User": sent.user, "Content-Type": sent.kind} | ({"Accept": sent.accept} if sent.accept else {})
    url = here.url + sent.path
    query = {name: str(value) for name, value in sent.query.items()}
    async with here.session.request(
        sent.method, url, params=query, data=sent.body or None, headers=headers
    ) as response:
        text = await response.read()
        return response.status, json.loads(text) if text else None


@pytest.mark.timeout(60 + EXAMPLES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(sent=st.lists(requests(), min_size=1, max_size=4))
def test_any_requests_are_answered_and_all_parts_go_on(running: Running, sent: list[Sent]) -> None:
    here = running.here.result()
    for each in sent:
        began = time.process_time()  # what others take of the machine is not counted
        code, body = running.call(answered(here, each))
        assert time.process_time() - began < SLOWEST, each
        running.codes[each.method, code] += 1
        assert 200 <= code < FAULTS, (each, body)
        if code >= 400:
            assert body["kind"] == "Status", (each, body)
            assert body["code"] == code, (each, body)
    assert running.failures == [], sent
    assert not any(task.done() for task in running.tasks), [task for task in running.tasks if task.done()]
    code, body = running.call(here.send("GET", "/api/v1/services"))
    assert code == 200
