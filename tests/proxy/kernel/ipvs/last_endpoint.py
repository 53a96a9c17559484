"""Direct return: open connections outlive the endpoints that they are with, in the Pod as well. Run in the guest."""

import pytest
from tests.proxy.kernel.ipvs.proxy import EXTERNAL, FAMILIES, IpvsProxy, addresses, annotated, slices, web

from vipwire.model.net import Family
from vipwire.model.service import TrafficPolicy
from vipwire_lab.cluster.cluster import Lab

pytestmark = pytest.mark.kernel


def receives(lab: Lab, family: Family) -> bool:
    return f"{EXTERNAL[family]}/" in lab.run("pod-1a", ["ip", "address"]).stdout


@FAMILIES
@pytest.mark.parametrize("forwarding", ["dsr", "tunnel"])
@pytest.mark.parametrize("policy", list(TrafficPolicy), ids=lambda policy: policy.value)
@pytest.mark.parametrize("left", [("pod-1b",), (), ("pod-2a",)], ids=["one here", "none", "one elsewhere"])
def test_a_connection_outlives_its_endpoint(
    lab: Lab, proxy: IpvsProxy, family: Family, forwarding: str, policy: TrafficPolicy, left: tuple[str, ...]
) -> None:
    asked = annotated(forwarding=forwarding, drain_seconds="30")
    service = web(external_ips=addresses(EXTERNAL), annotations=asked, external_policy=policy)
    proxy.put(service, *slices(lab, "web", ("pod-1a",)))
    with lab.connect("client", EXTERNAL[family], 80) as connection:
        if left != ("pod-2a",):  # node 2 has no proxy here that would prepare its Pod, or clean it up
            proxy.put(service, *slices(lab, "web", left))
        else:
            proxy.put(service, *slices(lab, "web", left, 8080))
        proxy.housekeep()
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        assert not any(proxy.check().values()), "what finishes is no drift"
        other = proxy.restarted()
        try:
            other.sync()
            other.housekeep()
            assert connection.exchange(b"still there?\n") == b"still there?\n"
            assert receives(lab, family)
        finally:
            for line in other.lines.values():
                line.backend.close()
    assert receives(lab, family), "IPVS does not see that the Pod has ended the connection"
    for line in proxy.lines.values():
        line.clock.now += 31
    proxy.housekeep()
    assert not receives(lab, family)
