"""Each reader of objects has the same sources: what is broken in a file or an object costs nobody else anything."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vipwire.kube import proxied, wire
from vipwire.kube.manifests.documents import MANIFESTS, ManifestReader, kind_in_manifests
from vipwire.kube.manifests.source import ManifestSource
from vipwire.kube.resource import ObjectReader, Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.model.service import Service
from vipwire.watched_objects.event import Deleted, Kind, Upserted
from vipwire.watched_objects.store import Store
from vipwire_l7.watch import kinds as ingress
from vipwire_l7.watch.snapshot import Snapshot
from vipwire_up.dns import objects as dns
from vipwire_up.dns.zone import Zone

GOOD = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}
"""
BROKEN = {
    "a tab": "apiVersion: v1\n\tkind: Service\n",
    "a scalar": "42\n",
    "no kind": "apiVersion: v1\nmetadata: {name: web}\n",
    "a key twice": GOOD + "kind: Service\n",
    "nothing": "]",
    "a list of scalars": "- 1\n- 2\n",
}


async def follow(source: ManifestSource[Any, Any], emit: Callable[[Any], Any], write: Callable[[], object]) -> None:
    """Follow a source until it has told what it thinks of a file that is written later."""
    told: asyncio.Queue[tuple[Problem, ...]] = asyncio.Queue()

    def hear(event: Any) -> None:
        emit(event)
        told.put_nowait(event.problems)

    async def heard(files: set[str]) -> None:
        while files:
            files -= {Path(problem.object.name).stem for problem in await told.get()}

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(source.run(hear))
        await heard(set(BROKEN))
        write()
        await heard({"late"})
        following.cancel()


def consumers() -> Iterator[tuple[ManifestReader[Any, Any], Callable[[Any], object], Callable[[], object]]]:
    store, zone, snapshot = Store(), Zone("cluster.local"), Snapshot()
    yield MANIFESTS, store.apply, lambda: list(store.services)
    yield dns.MANIFESTS, zone.apply, lambda: zone.sizes["services"]
    yield ingress.MANIFESTS, snapshot.apply, lambda: list(snapshot.services)


@pytest.mark.parametrize("who", range(3), ids=["proxy", "dns", "ingress"])
def test_a_broken_file_keeps_what_was_good_for_whoever_reads(tmp_path: Path, who: int) -> None:
    reader, apply, held = list(consumers())[who]
    (tmp_path / "web.yaml").write_text(GOOD)
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    source = ManifestSource([tmp_path], reader)
    asyncio.run(follow(source, apply, lambda: (tmp_path / "late.yaml").write_text("a: [")))
    assert held() in ([ObjectName("shop", "web")], 1)


def explosive(source: wire.WireService) -> tuple[Service | None, tuple[Problem, ...]]:
    if source.metadata and source.metadata.name == "boom":
        raise ZeroDivisionError("division by zero")
    return proxied.SERVICES.convert(source)  # type: ignore[return-value]


EXPLOSIVE = Resource(Kind.SERVICE, "/api/v1", "services", wire.WireService, explosive)


def body(name: str) -> dict[str, Any]:
    spec = {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec,
    }


def test_an_object_whose_reading_fails_as_nobody_thought_is_a_problem_of_its_own() -> None:
    reader = ObjectReader(EXPLOSIVE)
    listed = reader.build_listed_event((name, json.dumps(body(name)).encode()) for name in ("boom", "web"))
    assert [each.name.name for each in listed.objects] == ["web"]
    (problem,) = listed.problems
    assert (problem.object.name, "ZeroDivisionError" in problem.message) == ("boom", True)
    boom, web = (
        reader.build_change_event(ObjectName("shop", n), json.dumps(body(n)).encode()) for n in ("boom", "web")
    )
    assert isinstance(boom, Deleted)
    assert boom.problems == (problem,)
    assert isinstance(web, Upserted)


def test_so_it_is_in_a_file() -> None:
    text = "\n---\n".join(json.dumps(body(name)) for name in ("boom", "web"))
    entries = ManifestReader(kind_in_manifests(EXPLOSIVE)).read(text, "a.yaml").entries
    assert [(entry.name.name, len(entry.objects), len(entry.problems)) for entry in entries] == [
        ("boom", 0, 1),
        ("web", 1, 0),
    ]
