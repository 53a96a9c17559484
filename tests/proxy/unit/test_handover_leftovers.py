"""What ipvs mode has left: which chains, which virtual servers are in use. Also how its first commit is parted."""

import sys
from collections.abc import Collection
from typing import Any

from tests.fakes.kernel import DictBackend

from vipwire.linux.netlink.ipset import IpsetEntry
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Address, Family, parse_address
from vipwire.modes.ipvs.driver import FirstCommit, split_into_steps
from vipwire.modes.ipvs.leftovers import (
    IpvsConnection,
    build_redirection,
    find_leftovers,
    parse_flows,
    removable_objects,
)
from vipwire.modes.ipvs.objects import ranges
from vipwire.modes.ipvs.objects.device import parse_sources
from vipwire.modes.ipvs.objects.names import Ipset, MarkRule, Object, ObjectKey, SetEntry, Vip
from vipwire.modes.ipvs.ownership import GUARDS
from vipwire.modes.ipvs.skeleton import build_node_objects
from vipwire.modes.xtables.ownership import count_chains_of_one_mode, write_removals
from vipwire.modes.xtables.save import ChainName, read_table
from vipwire.plan.node import NodePlan
from vipwire.proxy_daemon.cleanup import VipwireOnlyOwner, all_of
from vipwire.proxy_daemon.handover.leftovers import list_owners
from vipwire.reconcile.delta import Delta

WEB, DNS, POD = (parse_address(each) for each in ("10.96.0.1", "10.96.0.10", "10.244.1.5"))
FLOWS = """\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0A000063 D431 0A600001 0050 0AF40105 0050 ESTABLISHED     899
TCP 0A000063 D432 0A60000A 0035 0AF40105 0035 TIME_WAIT       119
TCP 0A000063 0000 0A60000A 0035 0AF40105 0035 NONE            119
TCP fd00:0010:0000:0000:0000:0000:0000:0063 D431 fd00:0010:0096:0000:0000:0000:0000:0001 0050 \
fd00:0010:0244:0000:0000:0000:0000:0005 0050 FIN_WAIT       899
"""


def saved(family: Family) -> dict[str, str]:
    """Write the tables as iptables-save does where ipvs mode is in force."""
    chains = {key: value for key, value in build_node_objects(NodePlan(family)).items() if isinstance(key, ChainName)}
    tables: dict[str, str] = {}
    for table in ("mangle", "nat", "filter"):
        lines = [f"*{table}", *(f":{name} - [0:0]" for where, name in chains if where == table)]
        for (where, name), rules in chains.items():
            lines += [f"-A {name} {rule}" for rule in rules] if where == table and isinstance(rules, tuple) else []
        tables[table] = "\n".join([*lines, "COMMIT", ""])
    return tables


def server(address: Address, port: int = 80) -> VirtualServer:
    return VirtualServer(6, address, port)


def objects() -> dict[ObjectKey, Object]:
    """Make what ipvs mode has: two Services, one with a virtual server of a mark."""
    marked = VirtualServer(0, Address(b""), 0, 7)
    servers: dict[ObjectKey, Object] = dict.fromkeys((server(WEB), server(DNS, 53), marked), Scheduling("rr"))
    reals = (RealServer(server(WEB), POD, 80), RealServer(server(DNS, 53), POD, 53), RealServer(marked, POD, 80))
    others: dict[ObjectKey, Object] = {
        **dict.fromkeys(reals, Forwarding(1)),
        **dict.fromkeys((Vip(WEB), Vip(DNS), MarkRule(7)), None),
        Ipset("KUBE-CLUSTER-IP"): None,
        SetEntry("KUBE-CLUSTER-IP", IpsetEntry(protocol=6, address=WEB, port=80)): 0,
    }
    return servers | others


def leave(mode: str, running: str = "", held: Collection[ChainName] = ()) -> list[str]:
    """Write what removes a mode from where ipvs mode's rules are."""
    family = Family.IPV4
    known, tables = list_owners(family), read_saved(family)
    for table, chains in tables.items():  # what the running mode has too, it has written anew
        chains.update({each: [] for each in chains if running and known[running].owns_chain(table, each)})
    return "".join(write_removals(tables, [known[mode]], known.get(running), held)).splitlines()


def read_saved(family: Family) -> dict[str, dict[str, list[str]]]:
    return {table: read_table(text) for table, text in saved(family).items()}


def test_ipvs_modes_chains_are_known_from_those_of_iptables_mode() -> None:
    for family in Family:
        assert count_chains_of_one_mode(list_owners(family), read_saved(family)).keys() == {"ipvs"}


def test_its_chains_go_and_what_iptables_mode_has_under_the_same_names_stays() -> None:
    alone = leave("ipvs", "iptables")
    assert "-X KUBE-NODE-PORT" in alone
    assert "-X KUBE-LOAD-BALANCER" in alone
    for shared in ("KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-FORWARD"):
        assert f"-X {shared}" not in alone
    jumps = [line for line in alone if line.startswith("-D ")]
    assert not [line for line in jumps if line.endswith("-j KUBE-SERVICES")], "its words are iptables mode's as well"
    assert [line for line in jumps if line.endswith("-j KUBE-NODE-PORT")]


def test_a_chain_that_others_jump_to_is_only_emptied() -> None:
    tables = read_saved(Family.IPV4)
    tables["nat"]["OTHERS"] = ["-j KUBE-LOAD-BALANCER"]
    (text,) = (each for each in write_removals(tables, [list_owners(Family.IPV4)["ipvs"]]) if each.startswith("*nat"))
    assert ":KUBE-LOAD-BALANCER - [0:0]" in text
    assert "-X KUBE-LOAD-BALANCER" not in text


def test_beside_a_kube_proxy_in_ipvs_mode_only_chains_that_vipwire_alone_makes_go() -> None:
    ipvs, iptables = list_owners(Family.IPV4)["ipvs"], list_owners(Family.IPV4)["iptables"]
    leaving = [VipwireOnlyOwner(ipvs), iptables]
    texts = write_removals(read_saved(Family.IPV4), leaving, all_of([ipvs]))
    tables = {text.partition("\n")[0]: text for text in texts}
    assert "-X KUBE-PROXY-FIREWALL" in tables["*mangle"], "kube-proxy has none in that table"
    text = tables["*nat"] + tables["*filter"]
    gone = {line.removeprefix("-X ") for line in text.splitlines() if line.startswith("-X ")}
    assert {"KUBE-CLUSTER-IP", "KUBE-NO-LOCAL-ENDPOINTS", ranges.MARKS, ranges.STRAYS} <= gone
    kept = "SERVICES POSTROUTING NODE-PORT LOAD-BALANCER MARK-MASQ FORWARD SOURCE-RANGES-FIREWALL IPVS-FILTER"
    assert not gone & {f"KUBE-{name}" for name in kept.split()}
    jumps = [line for line in text.splitlines() if line.startswith("-D ")]
    assert not [line for line in jumps if line.rpartition(" ")[2].removeprefix("KUBE-") in kept.split()]


def test_where_iptables_mode_does_not_run_its_names_go_with_ipvs_mode() -> None:
    alone = leave("ipvs")
    for shared in ("KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-FORWARD"):
        assert f"-X {shared}" in alone
    assert [line for line in alone if line.startswith("-D ") and line.endswith("-j KUBE-SERVICES")]


def test_what_guards_the_addresses_of_the_device_stays_as_long_as_they_do() -> None:
    lines = leave("ipvs", held=GUARDS)
    begin = lines.index("*filter")
    of_filter = lines[begin : lines.index("COMMIT", begin)]
    assert not {f"-X {guard.chain}" for guard in GUARDS} & set(of_filter)
    assert not {f":{guard.chain} - [0:0]" for guard in GUARDS} & set(of_filter)
    assert not [line for line in of_filter if line.endswith("-j KUBE-IPVS-FILTER")]
    assert "-X KUBE-NODE-PORT" in lines
    assert "-X KUBE-IPVS-FILTER" in leave("ipvs")


def test_the_running_ipvs_mode_is_not_seen_by_who_removes_iptables_modes_chains() -> None:
    assert leave("iptables", "ipvs") == []
    tables = read_saved(Family.IPV4)
    tables["nat"]["KUBE-SVC-A"] = ["-j RETURN"]
    known = list_owners(Family.IPV4)
    (text,) = write_removals(tables, [known["iptables"]], known["ipvs"])
    assert text == "*nat\n:KUBE-SVC-A - [0:0]\n-X KUBE-SVC-A\nCOMMIT\n"


def test_connections_that_are_over_do_not_count() -> None:
    assert parse_flows(FLOWS, Family.IPV4) == {IpvsConnection((WEB, 80), (POD, 80))}
    (flow,) = parse_flows(FLOWS, Family.IPV6)
    assert flow.frontend == (parse_address("fd00:10:96::1"), 80)


def test_virtual_servers_in_use_and_their_addresses_stay_and_all_sets() -> None:
    left = find_leftovers(Family.IPV4, objects(), frozenset({IpvsConnection((WEB, 80), (POD, 80))}))
    gone = removable_objects(left)
    assert server(WEB) not in gone
    assert Vip(WEB) not in gone
    assert VirtualServer(0, Address(b""), 0, 7) not in gone, "its endpoint has a connection, and it may be its own"
    assert gone.keys() == {server(DNS, 53), RealServer(server(DNS, 53), POD, 53), Vip(DNS)}


def test_new_connections_to_node_ports_are_left_to_who_listens_there_and_others_live_on() -> None:
    """Userspace mode does, and IPVS would take connections before it."""
    node = parse_address("192.168.0.1")
    port = VirtualServer(6, node, 30080)
    real, here = RealServer(port, POD, 80), RealServer(port, node, 30080)
    everything = {**objects(), port: Scheduling("sh", ServiceFlag.PERSISTENT, 60), real: Forwarding(2)}
    delta = build_redirection(find_leftovers(Family.IPV4, everything, frozenset()))
    assert delta.added == {here: Forwarding(1, Method.ROUTE)}
    assert delta.changed == {
        port: (everything[port], Scheduling("rr")),
        real: (Forwarding(2), Forwarding(0)),
    }
    assert not delta.removed
    everything |= {port: Scheduling("rr"), here: Forwarding(1, Method.ROUTE)}
    del everything[real]  # without weight it is not seen
    assert not build_redirection(find_leftovers(Family.IPV4, everything, frozenset()))


def test_a_connection_to_a_socket_here_keeps_no_virtual_server() -> None:
    head = FLOWS.splitlines(keepends=True)[0]
    to = "TCP 0A000063 D431 C0A80001 7580"
    assert parse_flows(f"{head}{to} C0A80001 7580 ESTABLISHED     899\n", Family.IPV4) == set()
    assert len(parse_flows(f"{head}{to} 0AF40105 0050 ESTABLISHED     899\n", Family.IPV4)) == 1


def test_an_address_that_a_socket_of_the_node_has_stays_and_what_tells_that_it_is_ours() -> None:
    left = find_leftovers(Family.IPV4, objects(), frozenset(), frozenset({WEB, POD}))
    assert left.addresses == {WEB}
    kept = objects().keys() - removable_objects(left).keys()
    assert kept == {Vip(WEB), *(key for key in objects() if isinstance(key, Ipset | SetEntry))}


def test_sockets_are_read_in_this_machines_order_of_bytes() -> None:
    four, six = ("0100600A", "0000000000000000FFFF00000A00600A") if sys.byteorder == "little" else ("0A600001", "")
    head = "  sl  local_address rem_address   st tx_queue rx_queue\n"
    lines = f"   0: {four}:A000 0101007F:0050 01 0\n   1: {four[:6]}0B:A000 0:0 0A 0\n"
    assert parse_sources(head + lines) == {WEB}
    if six:
        assert parse_sources(f"{head}   0: {six}:A000 {six}:0050 01 0\n") == {DNS}


def test_everything_goes_when_nothing_is_in_use() -> None:
    everything = objects()
    assert removable_objects(find_leftovers(Family.IPV4, everything, frozenset())) == everything


class Written(DictBackend):
    """Notes each commit."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self._log = log

    def commit(self, delta: Delta[Any, Any]) -> int:
        """Note it."""
        self._log.append(delta)
        return 1


def test_on_arrival_servers_come_before_chains_once() -> None:
    log: list[Any] = []
    arrival = FirstCommit(Written(log), lambda: log.append("disarmed"), listens=False)
    chain, vip, gone = ChainName("nat", "KUBE-SERVICES"), Vip(WEB), Vip(DNS)
    delta: Delta[Any, Any] = Delta(added={chain: (), vip: None}, removed={gone: None})
    assert arrival.commit(delta) == 2
    first: Delta[Any, Any] = Delta(added={vip: None})
    rest: Delta[Any, Any] = Delta(added={chain: ()}, removed={gone: None})
    assert log == [first, "disarmed", rest]
    arrival.commit(delta)
    assert log[3:] == [delta]


def test_both_steps_together_are_the_whole() -> None:
    before: dict[Any, Any] = {Vip(DNS): None, ChainName("nat", "A"): ("x",)}
    delta: Delta[Any, Any] = Delta(
        added={Vip(WEB): None, ChainName("nat", "B"): ()},
        changed={ChainName("nat", "A"): (("x",), ("y",))},
        removed={Vip(DNS): None},
    )
    first, rest = split_into_steps(delta, listens=False)
    assert {**first.added, **rest.added} == delta.added
    assert {**first.changed, **rest.changed} == delta.changed
    assert rest.removed == delta.removed
    assert before.keys() & first.added.keys() == set()


def test_where_node_ports_were_sockets_their_virtual_servers_come_with_the_chains() -> None:
    port, chain = VirtualServer(6, parse_address("192.168.0.1"), 30080), ChainName("nat", "A")
    real = RealServer(port, POD, 80)
    ahead: dict[Any, Any] = {Vip(WEB): None, server(WEB): Scheduling("rr"), RealServer(server(WEB), POD, 80): 1}
    behind: dict[Any, Any] = {chain: (), port: Scheduling("rr"), real: Forwarding(1)}
    first, rest = split_into_steps(Delta(added=ahead | behind), listens=True)
    assert (first.added, rest.added) == (ahead, behind)
    first, rest = split_into_steps(Delta(added=ahead | behind), listens=False)
    assert rest.added == {chain: ()}


def test_a_range_has_connections_in_use_where_its_real_servers_leave_the_port_alone() -> None:
    marked = VirtualServer(0, Address(b""), 0, 0x123)
    range_of: dict[ObjectKey, Object] = {marked: Scheduling("rr"), RealServer(marked, POD, 0): Forwarding(1)}
    busy = find_leftovers(
        Family.IPV4, {**range_of, Vip(WEB): None}, frozenset({IpvsConnection((WEB, 10123), (POD, 10123))})
    )
    assert busy.busy == {marked}
    assert busy.addresses == {WEB}
    assert not find_leftovers(Family.IPV4, range_of, frozenset({IpvsConnection((WEB, 10123), (DNS, 10123))})).busy
