"""Connections and flows that outlive the last endpoint for new ones. Run in the guest.

Direct return concerns the Pod as well. A UDP flow continues while its endpoint serves.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.proxy.kernel.ipvs.proxy import (
    EXTERNAL,
    FAMILIES,
    NODE,
    IpvsProxy,
    addresses,
    annotated,
    in_turn,
    slices,
    web,
)

from vipwire.model.net import Family, Protocol
from vipwire.model.service import ServicePort, TrafficPolicy
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.echo_servers.answer import HELLO, Answer

pytestmark = pytest.mark.kernel


def receives(lab: Lab, family: Family) -> bool:
    return f"{EXTERNAL[family]}/" in lab.run("pod-1a", ["ip", "address"]).stdout


LEFT: Mapping[str, tuple[str, ...]] = {"one here": ("pod-1b",), "none": (), "one elsewhere": ("pod-2a",)}
WAYS = list(itertools.product(LEFT, TrafficPolicy, ("dsr", "tunnel")))
"""Each runs in one family, and each part in both: the families' rules are the same."""
FAMILY = {way: list(Family)[(number // 4 + number // 2 + number) % 2] for number, way in enumerate(WAYS)}


@pytest.mark.parametrize(
    ("left", "policy", "forwarding", "family"),
    [(LEFT[left], policy, forwarding, FAMILY[left, policy, forwarding]) for left, policy, forwarding in WAYS],
    ids=[f"{left}-{policy.value}-{forwarding}" for left, policy, forwarding in WAYS],
)
def test_a_connection_outlives_its_endpoint(
    lab: Lab, proxy: IpvsProxy, family: Family, forwarding: str, policy: TrafficPolicy, left: tuple[str, ...]
) -> None:
    asked = annotated(forwarding=forwarding, drain_seconds="30")
    service = web(external_ips=addresses(EXTERNAL), annotations=asked, external_policy=policy)
    proxy.put(service, *slices(lab, "web", ("pod-1a",)))
    with lab.connect("client", EXTERNAL[family], 80) as connection:
        if left != ("pod-2a",):  # node 2 has no proxy here that would prepare its Pod or clean up
            proxy.put(service, *slices(lab, "web", left))
        else:
            proxy.put(service, *slices(lab, "web", left, 8080))
        proxy.housekeep()
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        assert not any(proxy.check().values()), "what finishes is no drift"
        with proxy.restarted() as other:
            other.sync()
            other.housekeep()
            assert connection.exchange(b"still there?\n") == b"still there?\n"
            assert receives(lab, family)
    assert receives(lab, family), "IPVS does not see that the Pod has ended the connection"
    for line in proxy.lines.values():
        line.clock.now += 31
    proxy.housekeep()
    assert not receives(lab, family)


@in_turn("policy", *TrafficPolicy)
def test_a_flow_goes_on_while_its_endpoint_is_drained(
    lab: Lab, proxy: IpvsProxy, family: Family, policy: TrafficPolicy
) -> None:
    """With policy Local, an endpoint elsewhere serves: this node drops new flows. Else it refuses them."""
    pods = ("pod-1a", "pod-2a") if policy is TrafficPolicy.LOCAL else ("pod-1a",)
    ports = (ServicePort("", Protocol.UDP, 53),)
    service = web(ports=ports, external_ips=addresses(EXTERNAL), external_policy=policy)
    pieces = slices(lab, "web", pods, 80, Protocol.UDP)
    proxy.put(service, *pieces)
    drained = annotated(weights=json.dumps({lab.address_of("pod-1a", each): 0 for each in Family}))
    with lab.connect("client", EXTERNAL[family], 53, Protocol.UDP) as flow:
        proxy.put(replace(service, annotations=drained), *pieces)
        proxy.housekeep()
        assert Answer.decode(flow.exchange(HELLO)).pod == "pod-1a"
        assert not any(proxy.check().values()), "what drains is no drift"
        assert not proxy.probe("client", EXTERNAL[family], 53, protocol=Protocol.UDP, timeout=1.0)[0].answer


@FAMILIES
def test_a_changed_policy_leaves_open_connections_and_nothing_else(
    lab: Lab, proxy: IpvsProxy, family: Family
) -> None:
    """The pool of this node goes; another process finds what it has left to its connections."""
    asked = annotated(drain_seconds="30")
    service = web(external_ips=addresses(EXTERNAL), external_policy=TrafficPolicy.LOCAL, annotations=asked)
    pieces = slices(lab, "web", ("pod-1a",))
    proxy.put(service, *pieces)
    with lab.connect("client", EXTERNAL[family], 80) as connection:
        proxy.put(replace(service, external_policy=TrafficPolicy.CLUSTER), *pieces)
        proxy.housekeep()
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        assert not any(proxy.check().values()), "what finishes is no drift"
        with proxy.restarted() as other:
            other.sync()
            other.housekeep()
            assert connection.exchange(b"still there?\n") == b"still there?\n"
            assert not any(other.check().values())
        assert "FWM" in lab.run(NODE, ["ipvsadm", "-Ln"]).stdout
        for line in proxy.lines.values():
            line.clock.now += 31
        proxy.housekeep()
        assert "FWM" not in lab.run(NODE, ["ipvsadm", "-Ln"]).stdout
        assert "RANGES-LOCAL" not in "".join(
            each for each in lab.run(NODE, ["ipset", "save"]).stdout.splitlines() if each.startswith("add")
        )
