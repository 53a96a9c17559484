"""However changes of different kinds interleave, and however often a watch is cut, the objects in the end agree."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.apistore import ApiError, ApiStore, selector
from tests.fakes.event_log import apply
from tests.fakes.objects import service, slice_of

from vipwire.kube.proxied import ENDPOINT_SLICES, SERVICES, ProxyResource
from vipwire.kube.watch import ResourceWatch, WatchRequest
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Event, Kind, Object

Objects = dict[tuple[Kind, ObjectName], Object]
HEADLESS = {"clusterIP": "None", "clusterIPs": ["None"]}

steps = st.lists(
    st.tuples(
        st.sampled_from(["services", "endpointslices"]),
        st.sampled_from(["put", "change", "hide", "delete", "cut", "expire"]),
        st.integers(0, 4),
    ),
    max_size=30,
)


def value_of(plural: str, step: str, index: int) -> dict[str, Any]:
    if plural == "services":
        changed = {"ports": [{"port": 81}]} if step == "change" else {}
        return service(index, **(HEADLESS if step == "hide" else changed))
    value = slice_of(index, 2 if step == "change" else 1)
    if step == "hide":
        value["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    return value


class Line:
    """A machine, and a server's side of its connection that is fed by hand."""

    def __init__(self, store: ApiStore, resource: ProxyResource) -> None:
        self.store, self.resource = store, resource
        self.machine = ResourceWatch(resource)
        self.objects: Objects = {}
        self.events: list[Event] = []

    def catch_up(self) -> list[Event]:
        """Ask until a watch has told everything, then cut it."""
        before = len(self.events)
        plural = self.resource.plural
        fields = self.store.shelves[plural].collection.fields
        while True:
            action = self.machine.next_action(0.0)
            if not isinstance(action, WatchRequest):
                continue
            query = dict(action.query)
            matches = selector(query.get("labelSelector", ""), query.get("fieldSelector", ""), "", fields)
            if not action.watch:
                self.events += self.machine.handle_page(
                    self.store.page(plural, matches, 2, query.get("continue", "")), 0.0
                )
                continue
            try:
                changes = list(self.store.since(plural, int(query["resourceVersion"])))
            except ApiError as error:
                self.machine.handle_refusal(error.code, json.dumps(error.status()).encode(), 0.0)
                continue
            self.machine.handle_open(0.0)
            for change in changes:
                line = change.seen_by(matches)
                if line:
                    for part in (line[:20], line[20:]):
                        self.events += self.machine.handle_bytes(part, 0.0)
            self.machine.handle_end(60.0)
            return self.events[before:]


@given(steps, st.randoms(use_true_random=False))
def test_the_order_of_kinds_does_not_matter(history: list[tuple[str, str, int]], random: Any) -> None:
    store = ApiStore()
    lines = {"services": Line(store, SERVICES), "endpointslices": Line(store, ENDPOINT_SLICES)}
    for plural, step, index in history:
        if step == "cut":
            lines[plural].catch_up()
        elif step == "expire":
            store.expire()
        elif step == "delete":
            value = value_of(plural, "put", index)["metadata"]
            if (value["namespace"], value["name"]) in store.shelves[plural].objects:
                store.delete(plural, value["namespace"], value["name"])
        else:
            store.put(plural, value_of(plural, step, index))
    for line in lines.values():
        line.catch_up()
    fresh: Objects = {}
    for resource in (SERVICES, ENDPOINT_SLICES):
        for event in Line(store, resource).catch_up():
            apply(fresh, event)
    queues = [list(line.events) for line in lines.values()]
    mixed: Objects = {}
    while any(queues):
        apply(mixed, random.choice([queue for queue in queues if queue]).pop(0))
    assert mixed == fresh
