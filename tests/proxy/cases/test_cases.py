"""Manifests in, the plan and each mode's objects out: `UPDATE_GOLDEN=1 pytest tests/proxy/cases` records them.

A case is a file: what it shows, then sections. `--- objects` are manifests; `--- config`, where present, are fields
of KubeProxyConfiguration; all others are what is expected. Where a case brings no Node there is one in zone a. The
objects of the kernel are those of Services; a case without Services shows the others.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from tests.proxy.cases.iptables_text import iptables_lines
from tests.proxy.cases.plan_text import plan_lines

from vipwire.config.file import read_config
from vipwire.kube.manifests.inventory import listed, take_inventory
from vipwire.kube.manifests.proxied import MANIFESTS
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.modes.nftables.table.names import CHAIN, SET, Chain, Object, ObjectKey
from vipwire.modes.nftables.table.render import render
from vipwire.modes.nftables.table.skeleton import node_objects
from vipwire.modes.nftables.table.text import describe, element_text, table_name
from vipwire.plan.plan import ServicePlan
from vipwire.plan.planner import Planner
from vipwire.proxy.sync.node_plan import node_plan
from vipwire.state.event import Kind
from vipwire.state.store import Store

FOLDER = Path(__file__).parent
CASES = sorted(FOLDER.glob("*.txt"))
GIVEN = ("about", "config", "objects")
CONFIG = "clusterCIDR: 10.0.0.0/8,fd00:10::/32"
HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"
NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}, {type: InternalIP, address: "2001:db8::2"}]}
"""


def sections(text: str) -> dict[str, str]:
    """Part a case at its lines `--- name`."""
    found: dict[str, str] = {}
    name = "about"
    for line in text.splitlines():
        if line.startswith("--- "):
            name = line.removeprefix("--- ")
            assert name not in found, f"section {name} stands twice"
        found[name] = found.get(name, "") + ("" if line.startswith("--- ") else f"{line}\n")
    return found


def written(parts: dict[str, str]) -> str:
    return "".join(body if name == "about" else f"--- {name}\n{body}" for name, body in parts.items())


def outcome(given: dict[str, str]) -> dict[str, str]:
    """Compute all that a case expects."""
    config = read_config(HEADER + given.get("config", CONFIG)).config
    objects = given["objects"] if "kind: Node\n" in given["objects"] else f"{given['objects']}\n---\n{NODE}"
    store, problems = Store(), list[Problem]()
    for event in listed(take_inventory([MANIFESTS.read(objects, "case.yaml")], Kind.SERVICE), Kind):
        problems += store.apply(event)
    found = {"problems": "".join(f"{problem}\n" for problem in problems)} if problems else {}
    plans, tables = "", {}
    for family in Family:
        node = node_plan(config, family, "node-1", store.nodes["node-1"], store.service_cidrs, ())
        planner = Planner(node)
        planner.update(store.services, store.view)
        for name in sorted(planner.plans):
            plans += "".join(f"{line}\n" for line in plan_lines(planner.plans[name]))
        table = nftables_objects(family, planner.plans.values()) if store.services else node_objects(node)
        lines = nftables_lines(family, table)
        tables[f"nftables {table_name(family).split()[0]}"] = "".join(f"{line}\n" for line in lines)
        rules = iptables_lines(node, planner.plans.values()) if planner.plans or not store.services else []
        tables[f"iptables {table_name(family).split()[0]}"] = "".join(f"{line}\n" for line in rules)
    return found | {"plan": plans} | {name: text for name, text in tables.items() if text}


def nftables_objects(family: Family, plans: Iterable[ServicePlan]) -> dict[ObjectKey, Object]:
    objects: dict[ObjectKey, Object] = {}
    for plan in plans:
        rendered = render(family, plan)
        objects |= {**rendered.own, **rendered.shared}
    return objects


def nftables_lines(family: Family, objects: Mapping[ObjectKey, Object]) -> list[str]:
    """Write objects a line each, in the order of the text: that of the keys depends on the machine's byte order."""
    named = {key: value for key, value in objects.items() if key[0] in (CHAIN, SET)}
    lines = sorted(described(family, key, value) for key, value in named.items())
    elements = (f"{key[0]}: {element_text(family, key, objects[key])}" for key in objects.keys() - named.keys())
    return [*lines, *sorted(elements)]


def described(family: Family, key: ObjectKey, value: Object) -> str:
    if not isinstance(value, Chain):
        return describe(family, key)
    hook = f" at {value.hook.hook} {value.hook.priority}" if value.hook else ""
    return "\n".join([f"{describe(family, key)}{hook}", *(f"  {rule}" for rule in value.rules)])


def test_there_are_cases() -> None:
    assert len(CASES) >= 12


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_a_case(path: Path) -> None:
    found = sections(path.read_text(encoding="utf-8"))
    given = {name: body for name, body in found.items() if name in GIVEN}
    text = written(given | outcome(given))
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
