"""What the running proxy has ejected, in the words of the commands: they read its record."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.proxy.unit.inspected import HTTP, PODS, make_config

from vipwire.inspect.explain.document import explain_document
from vipwire.inspect.explain.explanation import explain
from vipwire.inspect.explain.packet import read_packet
from vipwire.inspect.node.situation import Situation, now_ejected, plan_family
from vipwire.inspect.node.source import list_once, make_source, node_name
from vipwire.inspect.status.document import status_document
from vipwire.inspect.status.tables import status_view
from vipwire.model.net import Family
from vipwire.proxy_daemon.start.record import EjectedEndpoint, ProxyRecord, open_record
from vipwire_lab.cluster import manifests
from vipwire_lab.namespaces.topology import DEFAULT

VIP, HERE, THERE = "10.96.0.10", "10.244.1.11", "10.244.2.11"
UNTIL, SHOWN = 1_800_000_000.0, "2027-01-15T08:00:00+00:00"


def look(folder: Path, *ejected: str, **spec: Any) -> Situation:
    """Plan as a proxy has it that has ejected these, and has left its record."""
    pods = [PODS["pod-1a"], PODS["pod-2a"]]
    objects = manifests.service_manifest(DEFAULT, "web", [VIP], [HTTP], pods, **spec)
    objects[0]["metadata"]["annotations"] = {"vipwire.io/eject-after": "3"}
    state = folder / "state"
    config = make_config(folder, objects, f"--state-dir={state}")
    out = tuple(EjectedEndpoint("default", "web", "http", 6, each, 8080, UNTIL) for each in ejected)
    open_record(str(state)).write(ProxyRecord(1, 0.0, "1", "node-1", "nftables", ejected=out))
    store = list_once(make_source(config))
    side = plan_family(config, store, Family.IPV4, (), ejected=now_ejected(config))
    return Situation(config, node_name(config), store, (), (side,))


def status(situation: Situation) -> tuple[dict[str, Any], str]:
    document = status_document(situation, list(situation.store.services.values()))
    out = io.StringIO()
    Console(file=out, width=300).print(status_view(document, wide=False, details=False))
    return document, out.getvalue()


def test_status_names_it_with_its_time(tmp_path: Path) -> None:
    document, text = status(look(tmp_path, THERE))
    (port,) = document["services"][0]["ports"]
    usages = {each["address"]: each for each in port["endpoints"]}
    assert usages[THERE]["ejectedUntil"] == SHOWN
    assert (usages[THERE]["forPolicies"], usages[HERE]["forPolicies"]) == ([], ["Cluster", "Local"])
    assert "ejectedUntil" not in usages[HERE]
    assert (
        f"{THERE}:8080 of default/web:http: ejected until {SHOWN}: the endpoint did not answer new connections"
    ) in text
    assert [each["address"] for each in port["frontends"][0]["endpoints"]] == [HERE]


def test_where_nobody_else_is_left_it_is_used_all_the_same(tmp_path: Path) -> None:
    document, _ = status(look(tmp_path, HERE, externalTrafficPolicy="Local", type="NodePort"))
    (port,) = document["services"][0]["ports"]
    usage = next(each for each in port["endpoints"] if each["address"] == HERE)
    assert usage["forPolicies"] == ["Local"]
    assert usage["why"].endswith("still used, because no other endpoint is left")


@pytest.mark.parametrize("ejected", [(), (THERE,)])
def test_explain_leaves_it_out_and_says_so(tmp_path: Path, ejected: tuple[str, ...]) -> None:
    situation = look(tmp_path, *ejected)
    explained = explain(situation, read_packet(situation, "10.244.1.12", f"{VIP}:80"), lambda _: None)
    assert explained is not None
    document = explain_document(explained)
    assert "vipwire ejects an endpoint that does not answer 3 connections in a row" in document["why"]
    assert {each["address"] for each in document["endpoints"]} == {HERE, THERE} - set(ejected)
    wanted = {"address": THERE, "port": 8080, "until": SHOWN, "used": False}
    assert document["ejected"] == [wanted for _ in ejected]
    said = f"{THERE}:8080 is ejected until {SHOWN}: the endpoint did not answer new connections"
    assert (said in document["why"]) == bool(ejected)
