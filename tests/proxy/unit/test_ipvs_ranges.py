"""A range of ports in ipvs mode: marks, virtual servers of marks, rules, and what is read of them."""

from typing import Any

from tests.fakes.values import cidr, endpoint, ip, node_plan, port, service, slice_of

from vipwire.linux.netlink.ipvs import Method, RealServer, Scheduling, VirtualServer
from vipwire.model.endpoint import EndpointPort
from vipwire.model.net import Family, Protocol
from vipwire.model.service import Service, ServicePort, TrafficPolicy
from vipwire.modes.ipvs.marks import FOREIGN, Marks, MarkScope
from vipwire.modes.ipvs.objects.chains import parted, rules_text
from vipwire.modes.ipvs.objects.commands import commands
from vipwire.modes.ipvs.objects.names import ChainName, Entry, MarkRule, Object, ObjectKey, RangeRule
from vipwire.modes.ipvs.render import RenderSettings, render
from vipwire.modes.ipvs.termination_policy import TerminationPolicy
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
    return dict(render(RenderSettings(Family.IPV4, "rr"), marks, plan).own)


def shared(plan: ServicePlan, marks: Marks) -> dict[ObjectKey, Object]:
    return dict(render(RenderSettings(Family.IPV4, "rr"), marks, plan).shared)


def marked(objects: dict[ObjectKey, Object]) -> dict[int, set[tuple[str, int]]]:
    """Find the virtual servers of marks with their real servers."""
    found: dict[int, set[tuple[str, int]]] = {key.mark: set() for key in objects if isinstance(key, VirtualServer)}
    for key in objects:
        if isinstance(key, RealServer):
            found[key.server.mark].add((".".join(map(str, key.address)), key.port))
    return {mark: reals for mark, reals in found.items() if mark}


def rules(objects: dict[ObjectKey, Object], table: str, chain: str) -> list[str]:
    return [key.words for key in objects if isinstance(key, RangeRule) and key[:2] == (table, chain)]


def test_a_range_is_a_rule_that_marks_and_a_virtual_server_that_leaves_the_port_alone() -> None:
    marks = Marks(BIT)
    objects = rendered(planned(LOCAL, REMOTE), marks)
    mark = marks.mark(KEY, MarkScope.INSIDE)
    both = {("10.1.0.1", 0), ("10.1.0.2", 0)}
    assert marked(objects) == {mark: both, mark | BIT: both}
    words = f'-d {VIP}/32 -p tcp -m comment --comment "default/web" -m tcp --dport 8000:9000'
    assert rules(objects, "mangle", "KUBE-IPVS-RANGES") == [f"{words} -j MARK --set-xmark {mark:#x}/0xffffffff"]
    assert rules(objects, "nat", "KUBE-IPVS-RANGES")[-1] == f"{words} -j ACCEPT"
    assert rules(objects, "filter", "KUBE-IPVS-RANGES") == [f"{words} -j RETURN"]
    (entry,) = (key for key in objects if isinstance(key, Entry) and key.set == "KUBE-RANGES")
    assert objects[entry] == mark, "by which the next process knows the virtual server"
    hairpins = rules(objects, "nat", "KUBE-IPVS-RANGES-HAIRPIN")
    assert [words.split()[:4] for words in hairpins] == [
        ["-s", f"{pod}/32", "-d", f"{pod}/32"] for pod in ("10.1.0.1", "10.1.0.2")
    ]


def test_another_target_port_is_that_of_the_real_servers() -> None:
    objects = rendered(planned(REMOTE, of=port(8001)), Marks(BIT))
    assert set().union(*marked(objects).values()) == {("10.1.0.2", 8080)}
    assert not rules(objects, "nat", "KUBE-IPVS-RANGES-HAIRPIN")


def test_with_a_local_policy_clients_outside_have_a_mark_of_their_own() -> None:
    marks = Marks(BIT)
    fields: dict[str, Any] = {"external_ips": (ip("1.1.1.1"),), "external_policy": TrafficPolicy.LOCAL}
    objects = rendered(planned(LOCAL, REMOTE, **fields), marks)
    key = KEY._replace(address=ip("1.1.1.1"))
    inside, outside = marks.mark(key, MarkScope.INSIDE), marks.mark(key)
    found = marked(objects)
    assert found[outside] == {("10.1.0.1", 0)}
    assert found[inside] == found[inside | BIT] == {("10.1.0.1", 0), ("10.1.0.2", 0)}
    (words,) = rules(objects, "mangle", "KUBE-IPVS-RANGES-LOCAL")
    assert f"{outside:#x}/" in words
    away = rendered(planned(REMOTE, **fields), marks)
    for table in ("mangle", "filter"):
        (words,) = rules(away, table, "KUBE-IPVS-RANGES-NO-LOCAL")
        assert words.endswith("-j KUBE-NO-LOCAL-ENDPOINTS")


def test_a_tcp_range_without_endpoints_lets_open_connections_end_and_takes_no_new_ones() -> None:
    marks = Marks(BIT)
    objects = rendered(planned(), marks)
    mark = marks.mark(KEY, MarkScope.INSIDE)
    assert marked(objects) == {mark: set(), mark | BIT: set()}
    (words,) = rules(objects, "filter", "KUBE-IPVS-RANGES-NONE")
    assert words.endswith("-j KUBE-IPVS-RANGES-REFUSE")
    assert not marked(rendered(planned(of=port(8080, protocol=Protocol.UDP)), Marks(BIT)))


def test_sources_that_may_come_are_let_through_before_others_are_dropped() -> None:
    fields: dict[str, Any] = {"load_balancer_ips": (ip("1.1.1.1"),), "source_ranges": (cidr("203.0.113.0/24"),)}
    objects = rendered(planned(REMOTE, **fields), Marks(BIT))
    for table in ("mangle", "filter"):
        first, last = rules(objects, table, "KUBE-IPVS-RANGES-FIREWALL")
        assert first.startswith("-s 203.0.113.0/24 -d 1.1.1.1/32")
        assert (first.rpartition(" ")[2], last.rpartition(" ")[2]) == ("RETURN", "DROP")


def test_a_range_may_be_answered_directly() -> None:
    marks = Marks(BIT)
    fields: dict[str, Any] = {"external_ips": (ip("1.1.1.1"),), "annotations": (("vipwire.io/forwarding", "dsr"),)}
    plan = planned(REMOTE, **fields)
    objects = rendered(plan, marks)
    mark = marks.mark(KEY._replace(address=ip("1.1.1.1")), MarkScope.INSIDE)
    assert MarkRule(mark) in shared(plan, marks)
    (how,) = (value for key, value in objects.items() if isinstance(key, RealServer) and key.server.mark == mark)
    assert getattr(how, "method", None) is Method.ROUTE
    (words,) = rules(objects, "mangle", "KUBE-IPVS-RANGES-SEGMENTS")
    assert "--sport 8000:9000" in words
    assert not [each for each in rules(objects, "nat", "KUBE-IPVS-RANGES") if "1.1.1.1" in each]


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
    assert parted(read) == (dict.fromkeys(read, ()), ours.added)
    late = {chain: members[::-1] for chain, members in read.items() if chain == ("nat", "KUBE-IPVS-RANGES")}
    (found, strays) = parted(late)
    assert found == dict.fromkeys(late, ())
    assert [rule.stray for rule in strays].count(True) == len(strays) - 1


def test_the_difference_is_told_as_commands() -> None:
    objects = rendered(planned(REMOTE), Marks(BIT))
    lines = list(commands(Family.IPV4, Delta(added=objects)))
    assert [line for line in lines if line.startswith("iptables -t mangle -I KUBE-IPVS-RANGES 1 -d 10.96.0.1/32")]
    server = next(key for key in objects if isinstance(key, VirtualServer) and key.mark)
    assert f"ipvsadm -a -f {server.mark} -r 10.1.0.2:0 -m -w 1" in lines
    gone = list(commands(Family.IPV4, Delta(removed=objects)))
    assert [line for line in gone if line.startswith("iptables -t mangle -D KUBE-IPVS-RANGES -d 10.96.0.1/32")]


def test_an_endpoint_of_a_udp_range_that_serves_on_may_finish() -> None:
    plan = planned(REMOTE, of=port(8080, protocol=Protocol.UDP))
    objects = rendered(plan, Marks(BIT))
    policy = TerminationPolicy()
    policy.note(plan, objects, None)
    reals = [key for key in objects if isinstance(key, RealServer) and key.server.mark]
    assert reals
    assert all(policy.may_finish(real) for real in reals)
    assert not policy.may_finish(reals[0]._replace(address=ip("10.1.0.9")))
    assert isinstance(objects[reals[0].server], Scheduling)
