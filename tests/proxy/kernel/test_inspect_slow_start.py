"""While an endpoint starts slowly the kernel deals by weights that only the proxy knows: they are read from there."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.fakes.own_network import own_network, run
from tests.proxy.unit.inspected import HTTP, PODS, make_config

from vipwire.cli.main import main
from vipwire.config.configuration import Config
from vipwire.inspect.node.situation import observe_situation, open_kernel
from vipwire.inspect.node.source import list_once, make_source
from vipwire.model.spread import Spread
from vipwire.plan.plan import Forward, Frontend, ServicePlan
from vipwire.reconcile.delta import compute_delta
from vipwire_lab.cluster import manifests
from vipwire_lab.namespaces.topology import DEFAULT

pytestmark = pytest.mark.kernel
VIP, NODE, OLD, NEW = "10.96.0.10", "192.168.0.1", "10.244.1.11", "10.244.2.11"


@pytest.fixture
def network() -> Iterator[int]:
    with own_network() as namespace:
        run("ip link add uplink type veth peer name outside")
        run("ip link set uplink up")
        run("ip link set outside up")
        run(f"ip addr add {NODE}/24 dev uplink")
        run("ip route add default via 192.168.0.254")
        yield namespace


def configured(folder: Path, algorithm: str) -> Config:
    """Write a Service with slow start, with a node port and an external policy Local."""
    fields: dict[str, Any] = {"type": "NodePort", "externalTrafficPolicy": "Local"}
    pods = [PODS["pod-1a"], PODS["pod-2a"]]
    objects = manifests.build_service_with_slices(DEFAULT, "web", [VIP], [HTTP], pods, **fields)
    objects[0]["metadata"]["annotations"] = {"vipwire.io/slow-start": "60s", "vipwire.io/algorithm": algorithm}
    return make_config(folder, objects)


def young(plan: ServicePlan) -> ServicePlan:
    """Give the second endpoint of each pool three tenths of its weight."""

    def dealt(action: Any) -> Any:
        if not isinstance(action, Forward) or len(action.pool) < 2:
            return action
        return replace(action, spread=Spread(action.spread.algorithm, (10, 3)))

    def made(frontend: Frontend) -> Frontend:
        return replace(frontend, action=dealt(frontend.action), short_circuit=dealt(frontend.short_circuit))

    return replace(plan, frontends=tuple(map(made, plan.frontends)))


def program(config: Config) -> None:
    with open_kernel(config) as kernel:
        for side in observe_situation(config, list_once(make_source(config)), kernel).sides:
            assert side.mode is not None
            objects = dict(side.node_objects)
            for plan in side.plans.values():
                rendered = side.mode.render(young(plan))
                objects.update({**rendered.own, **rendered.shared})
            side.mode.commit(compute_delta({}, objects))


def shown(config: Config, *arguments: str) -> tuple[int, Any]:
    flags = [f"--manifests={config.manifests[0]}", "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16"]
    result = CliRunner().invoke(main, [*arguments, *flags, "--nodeport-addresses=primary", "-o", "json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("algorithm", ["random", "round-robin", "maglev"])
def test_shares_are_those_of_the_moment_and_nothing_has_drifted(network: int, tmp_path: Path, algorithm: str) -> None:
    del network
    config = configured(tmp_path, algorithm)
    program(config)
    assert [family["state"] for family in shown(config, "status")[1]["families"]] == ["as planned"] * 2
    assert shown(config, "diff")[0] == 0
    for source, destination in (("203.0.113.9", f"{VIP}:80"), ("", f"{NODE}:30080")):
        status, document = shown(config, "explain", destination, f"--from={source}")
        assert (status, document["kernel"]["agrees"]) == (0, True)
        assert {each["address"]: round(each["share"], 2) for each in document["endpoints"]} == {OLD: 0.77, NEW: 0.23}
        assert "a new endpoint gets less than its share for 60 s (slow start)" in document["why"]


def test_what_somebody_has_changed_is_drift_all_the_same(network: int, tmp_path: Path) -> None:
    del network
    config = configured(tmp_path, "random")
    program(config)
    run(f"nft delete element ip vipwire service-endpoints {{ {VIP} . tcp . 80 . 0:2 }}")
    (four, six) = shown(config, "status")[1]["families"]
    assert (four["state"], six["state"]) == ("drifted", "as planned")
    assert shown(config, "explain", f"{VIP}:80", "--from=203.0.113.9")[0] == 1
