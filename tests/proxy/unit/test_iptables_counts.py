"""What rules have counted, as counts of Services: told by chain and comment, and never less than before."""

from tests.fakes.values import endpoint, ips, node_plan, port, service, slice_of

from vipwire.modes.iptables.counts import Ledger, RuleCounter, count_by_service, map_endpoints_by_port
from vipwire.modes.iptables.rules.names import UNALLOCATED
from vipwire.plan.frontends import plan_service
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.counts import Counts, Measure, Refusal

TEXT = ("10.1.0.1", "10.2.0.1")


def planned(*addresses: str) -> ServicePlan:
    subject = service("web", "10.96.0.1", port(node_port=30080), load_balancer_ips=ips("1.2.3.4"))
    return plan_service(node_plan(), subject, [slice_of("web", *map(endpoint, addresses))])


def counted(ledger: Ledger, plan: ServicePlan, packets: dict[str, int], *refused: RuleCounter) -> Counts:
    """Count what the endpoints' chains show, by address, and what rules of the filter table do."""
    ends = map_endpoints_by_port([plan])
    rules = [
        rule
        for chains in ends.values()
        for chain, name in chains.items()
        for rule in (
            RuleCounter(chain, 0, "default/web", 99),
            RuleCounter(chain, 1, "default/web", packets[".".join(map(str, name.address))]),
        )
    ]
    return count_by_service(ends, {"nat": rules, "filter": refused}, ledger, endpoints=True)


def test_a_port_keeps_what_endpoints_had_that_are_gone_or_back() -> None:
    ledger, plan = Ledger(), planned(*TEXT)
    name = plan.frontends[0].port_name
    counted(ledger, plan, {"10.1.0.1": 3, "10.2.0.1": 4})
    one = counted(ledger, planned("10.1.0.1"), {"10.1.0.1": 5})
    assert one[Measure.CONNECTIONS][name] == 9
    again = counted(ledger, plan, {"10.1.0.1": 5, "10.2.0.1": 1})
    assert again[Measure.CONNECTIONS][name] == 10


def test_rules_that_are_written_anew_do_not_lose_what_they_had() -> None:
    ledger, plan = Ledger(), planned()
    comments = {
        Refusal.NO_ENDPOINTS: "default/web has no endpoints",
        Refusal.NO_LOCAL_ENDPOINTS: "default/web has no local endpoints",
        Refusal.SOURCE_RANGE: "default/web traffic not accepted by KUBE-FW-ABC",
        Refusal.NODE_PORT_SOURCE_RANGE: "default/web traffic not accepted by KUBE-NPFW-ABC",
        Refusal.UNDEFINED_PORT: "default/web has no such port",
        Refusal.UNALLOCATED_CLUSTER_IP: UNALLOCATED,
    }
    for shown, expected in ((10, 20), (12, 24), (1, 26)):
        rules = [RuleCounter("KUBE-SVCS-2-1", at, text, shown) for at, text in enumerate(comments.values())]
        found = counted(
            ledger, plan, {}, *rules, *rules, RuleCounter("KUBE-SERVICES", 0, "another/one has no endpoints", 7)
        )
        refusals = found.refusals()
        assert {refusal for refusal, _ in refusals} == set(comments)
        assert set(refusals.values()) == {expected}
    assert {refusal for refusal, name in refusals if name is None} == {
        Refusal.UNDEFINED_PORT,
        Refusal.UNALLOCATED_CLUSTER_IP,
    }
