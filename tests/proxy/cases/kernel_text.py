"""The objects of each mode as lines of text, for the cases' expectations: the kernel's, a relay's, the programs'."""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from vipwire.linux.netlink.ipvs import Forwarding, Scheduling
from vipwire.model.net import Address, Family, Prefix, format_endpoint
from vipwire.modes.ebpf.layout import FRONTENDS, Head, endpoints, read_endpoint
from vipwire.modes.ebpf.layout import describe_key as describe_map_entry
from vipwire.modes.ebpf.render import render_service as render_ebpf
from vipwire.modes.iptables.rules import render as iptables
from vipwire.modes.iptables.rules import skeleton as iptables_skeleton
from vipwire.modes.iptables.rules.names import ROOT
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.ipvs import skeleton as ipvs_skeleton
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.objects.names import SetEntry, describe_object
from vipwire.modes.ipvs.render import render_service as render_ipvs
from vipwire.modes.nftables.table.names import CHAIN, SET, Chain, Object, ObjectKey
from vipwire.modes.nftables.table.render import render_service as render_nftables
from vipwire.modes.nftables.table.skeleton import build_node_objects as nftables_skeleton
from vipwire.modes.nftables.table.text import describe_key, write_element
from vipwire.modes.userspace import skeleton as userspace_skeleton
from vipwire.modes.userspace.names import Front, Rule
from vipwire.modes.userspace.render import render_service as render_userspace
from vipwire.modes.userspace.settings import Choices
from vipwire.modes.xtables.save import ChainName
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.relay.messages import Listener

Plans = Sequence[ServicePlan]


def nftables_lines(node: NodePlan, plans: Plans) -> Iterable[str]:
    """Write objects a line each, sorted as text: the keys' order depends on the machine's byte order."""
    objects: dict[ObjectKey, Object] = {} if plans else dict(nftables_skeleton(node))
    for plan in plans:
        rendered = render_nftables(node.family, plan)
        objects |= {**rendered.own, **rendered.shared}
    named = {key: value for key, value in objects.items() if key[0] in (CHAIN, SET)}
    yield from sorted(_described(node.family, key, value) for key, value in named.items())
    yield from sorted(
        f"{key[0]}: {write_element(node.family, key, objects[key])}" for key in objects.keys() - named.keys()
    )


def _described(family: Family, key: ObjectKey, value: Object) -> str:
    if not isinstance(value, Chain):
        return describe_key(family, key)
    hook = f" at {value.hook.hook} {value.hook.priority}" if value.hook else ""
    return "\n".join([f"{describe_key(family, key)}{hook}", *(f"  {rule}" for rule in value.rules)])


def iptables_lines(node: NodePlan, plans: Plans) -> Iterator[str]:
    objects = {} if plans else iptables_skeleton.node_objects(node, RuleSettings())
    for plan in plans:
        objects |= iptables.render_service(node, RuleSettings(), plan).own
    by_chain: dict[tuple[str, str], list[str]] = {}
    for key, rules in sorted(objects.items(), key=lambda item: (item[0].table, item[0].chain, item[0].kind == ROOT)):
        by_chain.setdefault((key.table, key.chain), []).extend(rules)
    for (table, chain), found in by_chain.items():
        yield from (f"{table} {chain} {rule}" for rule in found or ["(empty)"])


def ipvs_lines(node: NodePlan, plans: Plans) -> list[str]:
    """Write virtual servers, set elements, rules and routes by name; a chain's rules in their order."""
    objects: dict[Any, Any] = {} if plans else dict(ipvs_skeleton.build_node_objects(node))
    marks = Marks(0x4000)
    for plan in plans:
        rendered = render_ipvs(node.family, "rr", marks, plan)
        objects |= {**rendered.own, **rendered.shared}
    described = sorted(((describe_object(key), key, value) for key, value in objects.items()), key=itemgetter(0))
    return [line for text, key, value in described for line in _ipvs_object(text, key, value)]


def _ipvs_object(text: str, key: Any, value: Any) -> Iterator[str]:
    match value:
        case Scheduling(scheduler, flags, persistence):
            options = f" {_names(flags)} {persistence} s" if flags else ""
            yield f"{text} {scheduler}{options}"
        case Forwarding(weight, method):
            yield f"{text} weight {weight} {method.name.lower()}"
        case _ if isinstance(key, ChainName):
            yield from (f"{text} {rule}" for rule in value or ["(empty)"])
        case _ if isinstance(key, SetEntry):
            yield f"{text} mark {value:#x}" if value else text
        case _:
            yield text


def userspace_lines(node: NodePlan, plans: Plans) -> Iterator[str]:
    """Write the relay's listeners, and the rules by table and chain, first those at a chain's beginning."""
    objects: dict[Any, Any] = {} if plans else dict(userspace_skeleton.build_node_objects(node, Choices()))
    for plan in plans:
        objects |= render_userspace(node, Choices(), plan).own
    yield from sorted(_listener(value) for key, value in objects.items() if isinstance(key, Front))
    rules = [key for key in objects if isinstance(key, Rule)]
    for key in sorted(rules, key=lambda key: (key.table, key.chain, not key.first)):
        yield f"{key.table} {key.chain} {key.words}{f' to {key.front}' if key.front else ''}"
    for key, value in sorted((key, value) for key, value in objects.items() if not isinstance(key, Front | Rule)):
        yield from (f"{key.table} {key.chain} {rule}" for rule in value or ["(empty)"])


def _listener(listener: Listener) -> str:
    def place(address: bytes, port: int) -> str:
        return format_endpoint(Address(address), port)

    plain = Listener(listener.name, listener.protocol, (), ())
    shares = [f"{place(each.place.address, each.place.port)} weight {each.weight}" for each in listener.shares]
    binds = [place(each.address, each.port) for each in listener.binds]
    options = {
        name: getattr(listener, name)
        for name in ("algorithm", "affinity", "group", "beside", "whole", "proxy_protocol", "span")
        if getattr(listener, name) != getattr(plain, name)
    }
    if listener.sources is not None:
        options["sources"] = [str(Prefix(Address(network), length)) for network, length in listener.sources]
    told = "".join(f"; {name} {value}" for name, value in options.items())
    return f"listener {listener.name} on {', '.join(binds)}; to {', '.join(shares)}{told}"


def ebpf_lines(node: NodePlan, plans: Plans) -> Iterator[str]:
    """Write the frontends in the programs' maps. Their rules are those of nftables mode."""
    for plan in plans:
        for key, value in sorted(render_ebpf(node.family, plan).items()):
            text = describe_map_entry(key).removesuffix(" in the programs' map")
            if key[0] == FRONTENDS:
                dealt = [format_endpoint(*read_endpoint(each)) for each in endpoints(node.family, value)]
                text += f" {_names(Head.read(value).flags)}: {', '.join(dealt)}"
            yield text


def _names(flags: enum.IntFlag) -> str:
    return "|".join(str(flag.name) for flag in flags)


MODES: Final[Mapping[str, Callable[[NodePlan, Plans], Iterable[str]]]] = {
    "nftables": nftables_lines,
    "iptables": iptables_lines,
    "ipvs": ipvs_lines,
    "userspace": userspace_lines,
    "ebpf": ebpf_lines,
}
