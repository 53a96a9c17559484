"""A small cluster in manifests, and a mode with its objects in a dictionary, for tests of `inspect`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.fakes.kernel import PlainMode

from vipwire.config.configuration import Config
from vipwire.config.flags import build_config, parse_flags
from vipwire.inspect.node.family_view import FamilyView
from vipwire.inspect.node.situation import Situation, plan_family, with_observed_rules
from vipwire.inspect.node.source import list_once, make_source, node_name
from vipwire.model.net import Address, Family
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.plan.resolve import Packet
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import Explainer, Walk
from vipwire.reconcile.steps import Effect, End, ObjectState, Step, Verdict
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Backend, Port
from vipwire_lab.namespaces.topology import DEFAULT

PODS = {pod.name: pod for pod in DEFAULT.pods}
HTTP = Port(80, 8080, name="http", node_port=30080)


class Shelf(PlainMode):
    """A mode whose kernel is a dictionary."""

    def __init__(self, objects: Mapping[str, str]) -> None:
        self.objects = dict(objects)

    def render_node(self, node: NodePlan) -> Mapping[str, str]:
        return {"table": node.family.value}

    def render(self, plan: ServicePlan) -> Rendered[str, str]:
        return Rendered({f"{frontend.key}": type(frontend.action).__name__ for frontend in plan.frontends})

    def observe(self) -> dict[str, str]:
        return dict(self.objects)

    def changed(self) -> bool:
        return False

    def commit(self, delta: Delta[str, str]) -> int:
        self.objects.update(delta.added)
        return len(delta)

    def close(self) -> None:
        self.objects.clear()

    def describe(self, key: str) -> str:
        return f"object {key}"

    def delete(self) -> bool:
        return bool(self.objects)


class Teller(Explainer[str, str, None]):
    """Explains a shelf: every packet ends as the test says."""

    def __init__(self, walk: Walk, remains: str = "") -> None:
        super().__init__("shelf --family IPv4")
        self._walk, self._remains = walk, remains

    def write_script(self, delta: Delta[str, str]) -> Iterable[str]:
        yield from (f"delete {key}" for key in delta.removed)
        yield from (f"set {key} {new}" for key, (_, new) in delta.changed.items())
        yield from (f"set {key} {value}" for key, value in delta.added.items())

    def describe_foreign_objects(self) -> str:
        return self._remains

    def write_removal_of_foreign(self) -> Iterable[str]:
        return ("clear",)

    def arrange(self, observed: Mapping[str, str], wanted: Mapping[str, str], own: frozenset[Address]) -> None:
        del observed, wanted, own

    def trace(self, objects: None, packet: Packet) -> Walk:
        del objects, packet
        return self._walk


REFUSING = Walk(End.REJECTED, (Step("", "chain no", "reject", ObjectState.FOREIGN, (Effect(Verdict.REJECT),)),))


def make_config(folder: Path, objects: Iterable[Any], *flags: str) -> Config:
    every = [*(manifests.node_manifest(node) for node in DEFAULT.nodes), *objects]
    (folder / "objects.yaml").write_text("---\n".join(json.dumps(each) + "\n" for each in every))
    ours = [f"--manifests={folder}", "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16"]
    return build_config(parse_flags([*ours, "--nodeport-addresses=primary", *flags])).config


def example() -> list[Any]:
    """Make Services, each for another feature."""
    backends = [
        Backend(PODS["pod-1a"]),
        Backend(PODS["pod-2a"]),
        Backend(PODS["pod-1b"], ready=False),
        Backend(PODS["pod-2b"], ready=False, serving=True, terminating=True),
    ]
    affine: dict[str, Any] = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    }
    local: dict[str, Any] = {"externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["203.0.113.0/24"]}
    away = manifests.build_service_with_slices(
        DEFAULT,
        "away",
        ["10.96.0.2"],
        [Port(53)],
        [PODS["pod-2a"]],
        namespace="kube-system",
        type="LoadBalancer",
        **local,
    )
    away[0] |= manifests.build_load_balancer_status("198.51.100.1")
    return [
        *manifests.build_service_with_slices(
            DEFAULT, "web", ["10.96.0.10"], [HTTP], backends, type="NodePort", **affine
        ),
        *away,
        manifests.build_service("empty", ["10.96.0.3"], [Port(80)]),
        manifests.build_service("wrong", ["10.96.0.4"], [Port(70000)]),
    ]


def look(config: Config, shelf: Shelf | None, teller: Teller | None = None, obstacle: str = "") -> Situation:
    """Read IPv4 only, from a shelf instead of the kernel."""
    store = list_once(make_source(config))
    side: FamilyView = plan_family(config, store, Family.IPV4, ())
    seen = with_observed_rules(side, shelf, teller, obstacle)
    return Situation(config, node_name(config), store, (), (seen,))


def programmed(config: Config) -> Shelf:
    """Return a shelf that holds the plan."""
    shelf = Shelf({})
    delta = look(config, shelf).sides[0].delta
    assert delta is not None
    shelf.commit(delta)
    return shelf
