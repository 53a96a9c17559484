"""Statements: what a rule does with a packet that matches."""

import struct

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import wire
from vipwire.model.net import Family, parse_address
from vipwire.modes.nftables.language.draft import GROUP, Draft
from vipwire.modes.nftables.language.fields import PROTOCOLS, Type, parse_field, parse_fields
from vipwire.modes.nftables.language.values import is_class_id, parse_constant

_OPERATORS = {"and": "and", "&": "and", "or": "or", "|": "or", "xor": "xor", "^": "xor"}
_UNREACHABLE = {
    Family.IPV4: {"net-unreachable": 0, "host-unreachable": 1, "prot-unreachable": 2, "port-unreachable": 3},
    Family.IPV6: {"no-route": 0, "addr-unreachable": 3, "port-unreachable": 4},
}


def counter(draft: Draft) -> None:
    """Compile `counter [packets N bytes N]`; counts that a listing shows are not taken over."""
    if draft.words.skip("packets"):
        draft.words.number(0xFFFFFFFFFFFFFFFF)
        draft.words.expect("bytes")
        draft.words.number(0xFFFFFFFFFFFFFFFF)
    draft.add(kernel.counter())


def verdict(draft: Draft, code: wire.Code) -> None:
    """Compile a verdict without a target."""
    draft.verdict(code)


def to_chain(draft: Draft, code: wire.Code) -> None:
    """Compile what follows `jump` or `goto`."""
    draft.verdict(code, draft.words.take("a chain's name"))


def reject(draft: Draft) -> None:
    """Compile `reject [with tcp reset | with icmp[v6] [type] …]`."""
    codes = _UNREACHABLE[draft.family]
    code = codes["port-unreachable"]
    if draft.words.skip("with"):
        if draft.words.skip("tcp", "reset"):
            draft.need_protocol(PROTOCOLS["tcp"])
            draft.add(kernel.reject(kernel.REJECT_TCP_RESET, None))
            draft.finished = True
            return
        draft.words.expect("icmp" if draft.family is Family.IPV4 else "icmpv6")
        draft.words.skip("type")
        word = draft.words.take("a reason")
        if word not in codes:
            draft.words.fail_before(f"{word!r} is none of {', '.join(codes)}")
        code = codes[word]
    draft.add(kernel.reject(kernel.REJECT_ICMP, code))
    draft.finished = True


def masquerade(draft: Draft) -> None:
    """Compile `masquerade [random | fully-random]`."""
    flags = 0
    if draft.words.skip("fully-random"):
        flags = kernel.NAT_FULLY_RANDOM
    elif draft.words.skip("random"):
        flags = kernel.NAT_RANDOM
    draft.add(kernel.masquerade(flags))


def dnat(draft: Draft) -> None:
    """Compile `dnat [ip|ip6] to ADDRESS[:PORT]`, or `to FIELDS map @name` where the map gives address and port."""
    words = draft.words
    words.skip("ip" if draft.family is Family.IPV4 else "ip6")
    words.expect("to")
    family = wire.NFPROTO[draft.family]
    size = draft.family.bits // 32
    if "map" not in words:
        port = _constant_target(draft)
        draft.add(kernel.dnat(family, 0, GROUP if port else None))
        return
    fields = parse_fields(words, draft.family)
    words.expect("map")
    name = words.reference()
    draft.load_key(fields, name)
    draft.add(kernel.lookup(0, name, 0), kernel.dnat(family, 0, None if name in draft.addresses else size))


def _constant_target(draft: Draft) -> bool:
    """Load a constant address, and a port if there is one: tell whether there is."""
    words = draft.words
    word = words.take()
    text, colon, port = word, "", ""
    if word.startswith("["):
        text, _, port = word[1:].partition("]")
        colon, port = port[:1], port[1:]
    elif draft.family is Family.IPV4:
        text, colon, port = word.partition(":")
    try:
        address = parse_address(text)
    except ValueError as error:
        words.fail_before(str(error))
    if len(address) * 8 != draft.family.bits:
        words.fail_before(f"{word} is of the other family")
    draft.add(kernel.immediate(0, address))
    if not colon:
        return False
    if not port.isdecimal() or not 0 < int(port) <= 0xFFFF:
        words.fail_before(f"{port!r} is not a port")
    if not draft.protocol:
        words.fail_before("a port can only be translated after `meta l4proto` has been matched")
    draft.add(kernel.immediate(GROUP, int(port).to_bytes(2)))
    return True


def set_meta(draft: Draft, key: int, type_: Type) -> None:
    """Compile what follows `meta priority set` or `meta mark set`."""
    words = draft.words
    first = words.peek()
    if is_class_id(first) if type_ is Type.CLASS_ID else first[:1].isdigit():
        draft.add(kernel.immediate(0, parse_constant(words, type_).value))
    else:
        _computed(draft, type_)
    draft.add(kernel.set_meta(0, key))


def _computed(draft: Draft, type_: Type) -> None:
    words = draft.words
    fields = parse_fields(words, draft.family)
    if words.skip("map"):
        name = words.reference()
        draft.load_key(fields, name)
        draft.add(kernel.lookup(0, name, 0))
        return
    if len(fields) > 1:
        words.fail("expected 'map' after a concatenation")
    if fields[0].type not in (type_, Type.INTEGER):
        words.fail_before("this is of another type")
    draft.load_key(fields)
    if operator := _OPERATORS.get(words.peek()):
        words.take()
        draft.add(_bitwise(operator, words.number()))


def _bitwise(operator: str, number: int) -> bytes:
    everything = 0xFFFFFFFF
    mask, xor = {
        "and": (number, 0),
        "or": (everything & ~number, number),
        "xor": (everything, number),
    }[operator]
    return kernel.bitwise(0, struct.pack("=I", mask), struct.pack("=I", xor))


def flow_add(draft: Draft) -> None:
    """Compile what follows `flow`: `add @flowtable`."""
    draft.words.expect("add")
    draft.add(kernel.flow_offload(draft.words.reference()))


def dynset(draft: Draft, operation: int) -> None:
    """Compile what follows `add`, `update` or `delete`: `@name { KEY [timeout T] [: VALUE] }`.

    nft 1.0.6 cannot load this for a map whose key has more than 16 bytes (it aborts), but lists it.
    """
    words = draft.words
    name = words.reference()
    words.expect("{")
    key = parse_fields(words, draft.family)
    timeout = words.duration() if words.skip("timeout") else 0
    length = sum(field.words for field in key)
    free = -(-length // GROUP) * GROUP
    draft.load(key, 0, free)
    data = None
    if words.skip(":"):
        value = parse_field(words, draft.family)
        data = free
        draft.load((value,), data, data + GROUP)
    words.expect("}")
    draft.add(kernel.dynset(name, operation, 0, data, timeout))
