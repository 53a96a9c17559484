"""Manifests in, the plan and each mode's objects out: `UPDATE_GOLDEN=1 pytest tests/proxy/cases` records them.

A case is a file: what it shows, then sections. `--- objects` are manifests; `--- config`, where present, are fields
of KubeProxyConfiguration; `--- modes` names the modes, nftables and iptables otherwise, of which the first is that of
the configuration; all others are expected.
Where a case brings no Node there is one in zone a. The objects of the kernel are those of Services; a case without
Services shows the others.
"""

import os
from pathlib import Path

import pytest
from tests.proxy.cases.kernel_text import MODES
from tests.proxy.cases.plan_text import plan_lines

from vipwire.config.file import read_config
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire.kube.manifests.source import list_by_kind, take_inventory
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.plan.planner import Planner
from vipwire.proxy_daemon.sync.node_plan import build_node_plan
from vipwire.watched_objects.event import Kind
from vipwire.watched_objects.store import Store

FOLDER = Path(__file__).parent
CASES = sorted(FOLDER.glob("*.txt"))
GIVEN = ("about", "config", "modes", "objects")
FAMILIES = {Family.IPV4: "ip", Family.IPV6: "ip6"}
CONFIG = "clusterCIDR: 10.0.0.0/8,fd00:10::/32"
HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
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
    modes = given.get("modes", "nftables iptables").split()
    config = read_config(f"{HEADER}mode: {modes[0]}\n{given.get('config', CONFIG)}").config
    objects = given["objects"] if "kind: Node\n" in given["objects"] else f"{given['objects']}\n---\n{NODE}"
    store, problems = Store(), list[Problem]()
    for event in list_by_kind(take_inventory([MANIFESTS.read(objects, "case.yaml")], Kind.SERVICE), Kind):
        problems += store.apply(event)
    found = {"problems": "".join(f"{problem}\n" for problem in problems)} if problems else {}
    own = store.nodes["node-1"].addresses
    plans, rendered = "", {}
    for family, name in FAMILIES.items():
        node = build_node_plan(config, family, "node-1", store.nodes["node-1"], store.service_cidrs, own)
        planner = Planner(node)
        planner.update(store.services, store.view)
        of_family = [planner.plans[service] for service in sorted(planner.plans)]
        plans += "".join(f"{line}\n" for plan in of_family for line in plan_lines(plan))
        for mode in modes if of_family or not store.services else ():
            rendered[f"{mode} {name}"] = "".join(f"{line}\n" for line in MODES[mode](node, of_family))
    return found | {"plan": plans} | {section: text for section, text in rendered.items() if text}


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
