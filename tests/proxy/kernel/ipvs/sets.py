"""Ipsets that other programs, or an earlier vipwire, made with other options than today's. In the guest."""

import contextlib
import re
from collections.abc import Iterator

import pytest
from tests.proxy.kernel.ipvs.proxy import FAMILIES, NODE, VIP, IpvsProxy, proxied, slices, web

from vipwire.errors import CommitError
from vipwire.linux.netlink.ipset import IpsetSpec, SetType
from vipwire.model.net import Family, Protocol
from vipwire.model.service import ServicePort, ServiceType
from vipwire.modes.ipvs.objects.commands import list_commands
from vipwire.modes.ipvs.objects.names import BESIDE, Ipset, Object, ObjectKey, Set, set_spec
from vipwire.reconcile.delta import Delta
from vipwire_lab.cluster.cluster import Lab

pytestmark = pytest.mark.kernel

PODS = ("pod-1a", "pod-2a")
PORTS = tuple(ServicePort(f"p{at}", Protocol.TCP, 8000 + at, 30100 + at) for at in range(6))
MANY = 16384
LIMITED = {
    "few elements": ("CLUSTER-IP", "hash:ip,port family {inet} maxelem 4"),
    "elements that end": ("CLUSTER-IP", "hash:ip,port family {inet} timeout 600"),
    "elements that make room": ("CLUSTER-IP", "hash:ip,port family {inet} maxelem 4 forceadd"),
    "few ports": ("NODE-PORT-TCP", "bitmap:port range 30000-30100"),
    "no marks": ("LOCAL-POOL", "hash:ip,port family {inet}"),
}
OTHERS = {
    "another type": ("CLUSTER-IP", "bitmap:port range 0-9"),
    "a type with more fields": ("CLUSTER-IP", "hash:ip,port,net family {inet}"),
    "another family": ("CLUSTER-IP", "hash:ip,port family {other}"),
}
IN_USE = (
    (("few elements", "few ports"), ("elements that end", "no marks")),
    (("elements that make room", "no marks"), ("few elements", "few ports")),
)
FOUND = (*IN_USE, (("another type",), ("a type with more fields",)), (("another family",), ("another type",)))
"""The sets of IPv4 and those of IPv6: one code replaces both."""


def named(family: Family, name: str) -> str:
    return f"KUBE-{name}" if family is Family.IPV4 else f"KUBE-6-{name}"


def make(lab: Lab, family: Family, name: str, options: str) -> None:
    inet, other = ("inet", "inet6") if family is Family.IPV4 else ("inet6", "inet")
    lab.run(NODE, ["ipset", "create", name, *options.format(inet=inet, other=other).split()])


def limit(lab: Lab, family: Family, which: str, options: str) -> None:
    """Give a set that rules use other options."""
    name, beside = named(family, which), "theirs"
    make(lab, family, beside, options)
    saved = lab.run(NODE, ["ipset", "save", name]).stdout.splitlines()
    for element in [line.split()[2] for line in saved if line.startswith("add")]:
        lab.run(NODE, ["ipset", "add", beside, element])
    lab.run(NODE, ["ipset", "swap", beside, name])
    lab.run(NODE, ["ipset", "destroy", beside])


def definitions(lab: Lab) -> dict[str, str]:
    lines = lab.run(NODE, ["ipset", "save"]).stdout.splitlines()
    varying = re.compile(r" (hashsize|bucketsize|initval) \S+")
    words = (varying.sub("", line).split(maxsplit=2) for line in lines if line.startswith("create"))
    return {name: options for _, name, options in words}


@pytest.fixture(scope="module")
def usual(lab: Lab, shared: IpvsProxy) -> dict[str, str]:
    """The definitions of vipwire's own sets."""
    shared.check()
    found = definitions(lab)
    assert len(found) == len(Family) * len(Set)
    return found


@pytest.fixture
def empty_node(usual: dict[str, str], shared: IpvsProxy) -> Iterator[dict[str, str]]:
    """The usual definitions, on a node that has no set."""
    shared.clean()
    yield usual
    shared.check()


def put_many_ports(lab: Lab, proxy: IpvsProxy) -> None:
    pieces = [each for port in PORTS for each in slices(lab, "web", PODS, 80, name=port.name)]
    proxy.put(web(ports=PORTS, type=ServiceType.NODE_PORT), *pieces)
    for family in Family:
        for port in PORTS:
            for address, number in ((VIP[family], port.port), (lab.address_of(NODE, family), port.node_port)):
                assert proxy.probe("client", address, number)[0].answer, (family, number)


@pytest.mark.parametrize("sides", FOUND, ids=str)
def test_a_set_found_with_other_options_is_replaced_at_the_start(
    lab: Lab, empty_node: dict[str, str], sides: tuple[tuple[str, ...], ...]
) -> None:
    for family, kinds in zip(Family, sides, strict=True):
        for name, options in ({**LIMITED, **OTHERS}[kind] for kind in kinds):
            make(lab, family, named(family, name), options)
    with proxied(lab, empty=False) as proxy:
        put_many_ports(lab, proxy)
        assert definitions(lab) == empty_node
        assert proxy.check() == dict.fromkeys(Family, False)


@pytest.mark.parametrize("sides", IN_USE, ids=str)
def test_a_set_in_use_is_replaced_without_a_gap(
    lab: Lab, proxy: IpvsProxy, usual: dict[str, str], sides: tuple[tuple[str, ...], ...]
) -> None:
    proxy.put(web(), *slices(lab, "web", PODS))
    for family, kinds in zip(Family, sides, strict=True):
        for kind in kinds:
            limit(lab, family, *LIMITED[kind])
        make(lab, family, BESIDE[family], "bitmap:port range 0-9")  # of a process that was killed
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(lab.connect_continuously("client", VIP[family], 80)) for family in Family]
        for stream in streams:
            stream.wait_for(5)
        assert proxy.check() == dict.fromkeys(Family, True)
        for stream in streams:
            stream.wait_for(5)
    assert [stream.report.failures for stream in streams] == [(), ()]
    assert definitions(lab) == usual
    assert proxy.check() == dict.fromkeys(Family, False)


@FAMILIES
def test_a_full_set_grows_while_clients_connect(
    lab: Lab, proxy: IpvsProxy, usual: dict[str, str], family: Family
) -> None:
    """vipwire copies for many connections' time, and refuses a connection that its set does not have."""
    name = named(family, "CLUSTER-IP")
    proxy.put(web(), *slices(lab, "web", PODS))
    limit(lab, family, "CLUSTER-IP", f"hash:ip,port family {{inet}} maxelem {MANY + 1}")
    others = (f"add {name} {VIP[family]},udp:{port}\n" for port in range(1, MANY + 1))
    lab.run(NODE, ["ipset", "restore"], input="".join(others))
    with (
        lab.connect("client", VIP[family], 80) as connection,
        lab.connect_continuously("client", VIP[family], 80, interval=0.001) as stream,
    ):
        stream.wait_for(5)
        assert proxy.check()[family]
        stream.wait_for(5)
        assert connection.exchange(b"still here\n") == b"still here\n"
    assert stream.report.failures == ()
    assert definitions(lab) == usual
    put_many_ports(lab, proxy)


@FAMILIES
def test_a_set_of_another_type_that_rules_use_is_named(lab: Lab, empty_node: dict[str, str], family: Family) -> None:
    name = named(family, "CLUSTER-IP")
    make(lab, family, name, OTHERS["another type"][1])
    tool = "iptables-legacy" if family is Family.IPV4 else "ip6tables-legacy"
    rule = ["OUTPUT", "-p", "tcp", "-m", "set", "--match-set", name, "dst", "-j", "RETURN"]
    lab.run(NODE, [tool, "-t", "mangle", "-I", *rule])
    with proxied(lab, empty=False) as proxy:
        refused = rf"ipset {name} is not of type hash:ip,port for {family.value}, and rules"
        with pytest.raises(CommitError, match=refused):
            proxy.put(web(), *slices(lab, "web", PODS))
        lab.run(NODE, [tool, "-t", "mangle", "-D", *rule])
        proxy.sync()
        assert proxy.probe("client", VIP[family])[0].answer
        assert definitions(lab) == empty_node


@FAMILIES
def test_printed_commands_replace_sets(lab: Lab, empty_node: dict[str, str], family: Family) -> None:
    element, other = f"{VIP[family]},tcp:80", f"{VIP[family]},udp:80"
    name, marked, ports = (named(family, each) for each in ("CLUSTER-IP", "LOCAL-POOL", "NODE-PORT-TCP"))
    make(lab, family, name, "hash:ip,port family {inet} timeout 600")
    make(lab, family, marked, "hash:ip,port family {inet} maxelem 4 skbinfo")
    make(lab, family, ports, "hash:ip,port family {inet}")
    added = (f"add {name} {element}", f"add {marked} {element} skbmark 0x7", f"add {marked} {other}")
    lab.run(NODE, ["ipset", "restore"], input="".join(f"{each}\n" for each in added))
    old = IpsetSpec(SetType.ADDRESS_PORT, limits="timeout 600")
    changed: dict[ObjectKey, tuple[Object, Object]] = {
        Ipset(name): (old, set_spec(Set.CLUSTER_IP)),
        Ipset(marked): (old, set_spec(Set.LOCAL_POOL)),
        Ipset(ports): (None, set_spec(Set.NODE_PORT_TCP)),
    }
    lab.run(NODE, ["sh", "-ec", "\n".join(list_commands(family, Delta(changed=changed)))])
    assert definitions(lab) == {each: empty_node[each] for each in (name, marked, ports)}
    saved = lab.run(NODE, ["ipset", "save"]).stdout.splitlines()
    assert {line for line in saved if line.startswith("add")} == set(added)
