"""Matches: a field or a concatenation against a constant, a set or a verdict map."""

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.modes.nftables.language.draft import GROUP, Draft
from vipwire.modes.nftables.language.fields import Field, Header, Order, Type, parse_fields
from vipwire.modes.nftables.language.values import BITMASKS, parse_constant

_MASKABLE = 4
_COUNT = 8


def match(draft: Draft) -> None:
    """Read and compile one match."""
    words = draft.words
    fields = parse_fields(words, draft.family)
    for field in fields:
        if isinstance(field, Header):
            draft.need_protocol(field.protocol)
    if words.skip("vmap"):
        name = words.reference()
        draft.load_key(fields, name)
        draft.add(kernel.lookup_verdict(0, name))
        return
    ahead = 1 if words.peek() in ("!=", "==") else 0
    if words.peek(ahead).startswith("@"):
        inverted = words.take() == "!=" if ahead else False
        name = words.reference()
        draft.load_key(fields, name)
        draft.add(kernel.lookup(0, name, flags=kernel.LOOKUP_INVERTED if inverted else 0))
        return
    if words.skip(">"):
        _exceed(draft, fields)
        return
    if len(fields) > 1:
        words.fail("a concatenation can only be looked up in a set (@name) or map (vmap @name)")
    _compare(draft, fields[0])


def _compare(draft: Draft, field: Field) -> None:
    words = draft.words
    mask: bytes | None = None
    if words.skip("and") or words.skip("&"):
        if field.size != _MASKABLE or field.order is not Order.HOST:
            words.fail_before("only a number of four bytes can be masked")
        mask = parse_constant(words, field.type).value
    operator = words.take() if words.peek() in ("!=", "==") else ""
    if words.peek() == "{":
        words.fail("declare a named set instead of listing values in the rule")
    constant = parse_constant(words, field.type)
    if mask is None and field.type in BITMASKS:
        _compare_bits(draft, field, operator, constant.value)
        return
    operation = kernel.CMP_NEQ if operator == "!=" else kernel.CMP_EQ
    draft.add(_load_start(field, len(constant.value)))
    mask = mask or constant.mask
    if mask:
        draft.add(kernel.bitwise(0, mask, bytes(len(mask))))
    draft.add(kernel.cmp(0, operation, constant.value))
    if field.type is Type.PROTOCOL and operation == kernel.CMP_EQ:
        draft.protocol = constant.value[0]


def _exceed(draft: Draft, fields: tuple[Field, ...]) -> None:
    """Compile `> NUMBER` behind a count of eight bytes: the kernel compares bytes, the highest has to come first."""
    field = fields[0]
    if len(fields) > 1 or field.size != _COUNT:
        draft.words.fail_before("only a count can be compared by its size")
    limit = draft.words.number(0xFFFFFFFFFFFFFFFF).to_bytes(_COUNT)
    draft.add(field.load(0, GROUP), kernel.host_to_network(0, _COUNT, _COUNT), kernel.cmp(0, kernel.CMP_GT, limit))


def _load_start(field: Field, length: int) -> bytes:
    """Load as much of a header's field as is compared; everything else is loaded whole."""
    if isinstance(field, Header):
        return kernel.payload(0, field.base, field.offset, length)
    return field.load(0, GROUP)


def _compare_bits(draft: Draft, field: Field, operator: str, value: bytes) -> None:
    """Compare a bit mask: without an operator any of the bits will do."""
    draft.add(field.load(0, GROUP))
    if operator:
        if int.from_bytes(value).bit_count() != 1:
            draft.words.fail_before(f"{operator} takes one name here")
        draft.add(kernel.cmp(0, kernel.CMP_NEQ if operator == "!=" else kernel.CMP_EQ, value))
        return
    draft.add(kernel.bitwise(0, value, bytes(len(value))), kernel.cmp(0, kernel.CMP_NEQ, bytes(len(value))))
