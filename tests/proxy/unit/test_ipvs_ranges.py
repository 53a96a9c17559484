"""A range of ports in ipvs mode: marks, virtual servers of marks, rules, and what is read of them."""

from typing import Any

from tests.fakes.values import endpoint, ip, node_plan, port, service, slice_of

from vipwire.linux.netlink.ipvs import RealServer, Scheduling
from vipwire.model.net import Family, Protocol
from vipwire.model.service import EndpointPort, Service, ServicePort
from vipwire.modes.ipvs.marks import FOREIGN, Marks, MarkScope
from vipwire.modes.ipvs.objects.chains import rules_text, separate_shared
from vipwire.modes.ipvs.objects.names import Object, ObjectKey, RangeRule
from vipwire.modes.ipvs.render import render_service
from vipwire.modes.ipvs.termination import TerminationPolicy
from vipwire.modes.xtables.save import ChainName
from vipwire.plan.frontends import plan_service
from vipwire.plan.plan import FrontendKey, RangeKey, ServicePlan
from vipwire.reconcile.delta import Delta

LOCAL, REMOTE = endpoint("10.1.0.1", "node-1"), endpoint("10.1.0.2")
VIP, BIT = "10.96.0.1", 0x4000
KEY = RangeKey(ip(VIP), Protocol.TCP, 8000, 9000)


def planned(*endpoints: Any, of: ServicePort = port(8080), **fields: Any) -> ServicePlan:  # noqa: B008 - frozen
    asked = (("vipwire.io/port-range", "8000-9000"), *fields.pop("annotations", ()))
    node = node_plan(port_ranges=True, addresses=(ip("192.168.0.2"),))
    subject: Service = service("web", VIP, of, annotations=asked, **fields)
    wired = [EndpointPort("", of.protocol, 8080)]
    return plan_service(node, subject, [slice_of("web", *endpoints, ports=wired)])


def rendered(plan: ServicePlan, marks: Marks) -> dict[ObjectKey, Object]:
    return dict(render_service(Family.IPV4, "rr", marks, plan).own)


def test_no_mark_is_one_that_others_give_a_meaning() -> None:
    marks = Marks(avoid=1 << 20)
    keys = [FrontendKey(ip(VIP), Protocol.TCP, number) for number in range(1, 300)]
    keys += [KEY._replace(first=number) for number in range(1, 300)]  # type: ignore[misc]
    given = [marks.mark(key, scope) for key in keys for scope in MarkScope]
    assert len(set(given)) == len(given)
    assert not any(mark & (FOREIGN | 1 << 20) for mark in given)


def test_what_is_written_is_read_and_what_stands_in_the_way_is_moved() -> None:
    objects = rendered(planned(LOCAL), Marks(BIT))
    ours: Delta[RangeRule, int] = Delta(added={key: 1 for key in objects if isinstance(key, RangeRule)})
    chains: dict[ChainName, list[str]] = {}
    for table in rules_text(ours).split("COMMIT\n"):
        lines = table.splitlines()
        for line in lines[1:]:
            how, chain, words = line.split(" ", 2)
            members = chains.setdefault(ChainName(lines[0][1:], chain), [])
            members.insert(0, words[2:]) if how == "-I" else members.append(words)
    read = {chain: tuple(members) for chain, members in chains.items()}
    assert separate_shared(read) == (dict.fromkeys(read, ()), ours.added)
    late = {chain: members[::-1] for chain, members in read.items() if chain == ("nat", "KUBE-IPVS-RANGES")}
    (found, strays) = separate_shared(late)
    assert found == dict.fromkeys(late, ())
    assert [rule.stray for rule in strays].count(True) == len(strays) - 1


def test_an_endpoint_of_a_udp_range_that_serves_on_may_finish() -> None:
    plan = planned(REMOTE, of=port(8080, protocol=Protocol.UDP))
    objects = rendered(plan, Marks(BIT))
    policy = TerminationPolicy()
    policy.record_plan(plan, objects, None)
    reals = [key for key in objects if isinstance(key, RealServer) and key.server.mark]
    assert reals
    assert all(policy.may_finish(real) for real in reals)
    assert not policy.may_finish(reals[0]._replace(address=ip("10.1.0.9")))
    assert isinstance(objects[reals[0].server], Scheduling)
