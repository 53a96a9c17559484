"""Writes vipwire's own policies for annotations without a place in the Gateway API. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.plan.annotations import AnnotationValues
from vipwire_l7.plan.policy_fields import BACKEND, TRAFFIC
from vipwire_l7.watch.objects import Ingress, Json

_API: Final = "vipwire.io/v1"
_ROUTES: Final = "gateway.networking.k8s.io"
_OF_ROUTES: Final = frozenset({"timeout-server"})
"""The annotations that become fields of the route."""
_MOST_TARGETS: Final = 16
IN_POLICIES: Final = frozenset((*TRAFFIC.values(), *BACKEND.values()))
"""The annotations that become fields of policies."""


def write_traffic_policies(ingress: Ingress, values: AnnotationValues, routes: Iterable[str]) -> Iterator[Json]:
    refs = [{"group": _ROUTES, "kind": "HTTPRoute", "name": name} for name in routes]
    yield from _write_policies("TrafficPolicy", ingress, refs, _write_spec(ingress, values, TRAFFIC))


def write_backend_policies(
    ingresses: Iterable[tuple[Ingress, AnnotationValues]],
) -> tuple[list[Json], list[Problem]]:
    """Write a BackendPolicy for each Service of the Ingresses. If they differ, the oldest Ingress's settings win."""
    made: list[Json] = []
    problems, known = [], dict[ObjectName, Json]()
    for ingress, values in ingresses:
        spec = _write_spec(ingress, values, BACKEND)
        refs = [rule.backend for rule in ingress.rules] + [each for each in (ingress.default_backend,) if each]
        fresh: list[Json] = []
        for service in dict.fromkeys(ref.service for ref in refs):
            if known.setdefault(service, spec) is spec:
                fresh.append({"group": "", "kind": "Service", "name": service.name})
            elif known[service] != spec:
                text = f"an older Ingress sets other values for the Service {service}, which apply to both"
                problems.append(Problem("Ingress", ingress.name, "metadata.annotations", text))
        made += _write_policies("BackendPolicy", ingress, fresh, spec)
    return made, problems


def _write_policies(kind: str, ingress: Ingress, refs: Sequence[Json], spec: Json) -> Iterator[Json]:
    """Write as many policies as the targets need: a policy has a limited number of targetRefs."""
    for start in range(0, len(refs) if spec else 0, _MOST_TARGETS):
        name = ingress.name.name if not start else f"{ingress.name.name}-{start // _MOST_TARGETS + 1}"
        content = {"targetRefs": [*refs[start : start + _MOST_TARGETS]], **spec}
        meta = {"name": name, "namespace": ingress.name.namespace}
        yield {"apiVersion": _API, "kind": kind, "metadata": meta, "spec": content}


def _write_spec(ingress: Ingress, values: AnnotationValues, fields: Mapping[str, str]) -> Json:
    spec: Json = {}
    for path, name in fields.items():
        value = None if name in _OF_ROUTES else values.values.get(name)
        if value is None or (name == "body-size" and not value):
            continue
        group, _, inner = path.rpartition(".")
        (spec.setdefault(group, {}) if group else spec)[inner] = _write_value(name, value, ingress.name.namespace)
    return spec


def _write_value(name: str, value: object, namespace: str) -> object:
    if name.startswith("timeout-") or name == "health-check-interval":
        return f"{value}ms"
    if isinstance(value, tuple):
        return [str(each) for each in value]
    if name == "auth-secret":
        return str(value).removeprefix(f"{namespace}/")
    return str(value) if name == "body-size" else value
