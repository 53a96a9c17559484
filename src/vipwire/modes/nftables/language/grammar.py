"""The grammar of rules: `parse_rule` turns one rule's text into parts, for `compile` and `explain`.

It knows the syntax of the table's own rules; any other syntax raises RuleSyntaxError. Both consumers match every kind
of `Part`, so `explain` understands each rule that compiles.
"""

from collections.abc import Callable
from functools import lru_cache, partial

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables.elements import VerdictData
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model.net import Family, parse_address
from vipwire.model.value import Value
from vipwire.modes.nftables.language.fields import Field, Order, Type, parse_constant, parse_field, parse_fields
from vipwire.modes.nftables.language.scan import Scanner

GROUP = 4
"""Registers come in groups of four words. A key begins at the first word, a hash's input one group later."""

# matches


class Compare(Value, frozen=True):
    """`ip daddr 10.0.0.0/8`, `meta mark and 0x4000 != 0`. Compares as many bytes as the constant has."""

    field: Field
    constant: bytes
    mask: bytes = b""
    negated: bool = False


class Bits(Value, frozen=True):
    """`ct state new`: the value has this bit."""

    field: Field
    bits: bytes


class Exceeds(Value, frozen=True):
    """`ct packets > 20`."""

    field: Field
    limit: int


class Member(Value, frozen=True):
    """`ip daddr . th dport @set`, `ip saddr != @set`."""

    key: tuple[Field, ...]
    set: str
    negated: bool = False


class VerdictMap(Value, frozen=True):
    """`ip daddr vmap @map`."""

    key: tuple[Field, ...]
    map: str


# values


class Computed(Value, frozen=True):
    """The value of a field after `or` or `xor` with a number."""

    field: Field
    operator: str
    number: int


class Mapped(Value, frozen=True):
    """The value of a map for a key."""

    key: tuple[Field, ...]
    map: str


class Numgen(Value, frozen=True):
    """`numgen random mod 3 offset 1`: a random number, or one in turn (`inc`)."""

    in_turn: bool
    modulus: int
    offset: int


class Jhash(Value, frozen=True):
    """`jhash ip saddr mod 3 seed 0x1 offset 1`: Jenkins' hash of fields."""

    sources: tuple[Field, ...]
    modulus: int
    seed: int
    offset: int


# statements


class Counter(Value, frozen=True):
    """`counter`."""


class RejectWith(Value, frozen=True):
    """`reject`: ICMP port unreachable; `reject with tcp reset`: a TCP reset."""

    reset: bool


class SourceNat(Value, frozen=True):
    """`masquerade fully-random`."""


class DnatTo(Value, frozen=True):
    """`dnat ip to 10.0.0.1`: the packet keeps its port."""

    address: bytes


class DnatMap(Value, frozen=True):
    """`dnat ip to ip daddr . th dport map @map`."""

    key: tuple[Field, ...]
    map: str


class SetMeta(Value, frozen=True):
    """`meta mark set …`, `meta priority set …`; `meta` is the kernel's key."""

    meta: int
    value: bytes | Computed | Mapped | Numgen | Jhash


class UpdateSet(Value, frozen=True):
    """`update @set { KEY timeout 10s : VALUE }`, or `delete`; 0 seconds means the set's timeout."""

    set: str
    operation: int
    key: tuple[Field, ...]
    seconds: int = 0
    value: Field | None = None


class AddFlow(Value, frozen=True):
    """`flow add @flowtable`."""

    table: str


Match = Compare | Bits | Exceeds | Member | VerdictMap
Statement = VerdictData | Counter | RejectWith | SourceNat | DnatTo | DnatMap | SetMeta | UpdateSet | AddFlow
Part = Match | Statement


@lru_cache(maxsize=512)  # an explanation parses the same rules once for each slot
def parse_rule(text: str, family: Family) -> tuple[Part, ...]:
    """Parse one rule; raise RuleSyntaxError for any syntax outside of the subset."""
    words = Scanner(text)
    if not words:
        words.fail("a rule cannot be empty")
    parser, parts = _Parser(words, family), list[Part]()
    while words:
        if parts and _is_terminal(parts[-1]):
            words.fail("nothing can follow a verdict")
        parts.append(parser.parse_part())
    return tuple(parts)


class _Parser:
    def __init__(self, words: Scanner, family: Family) -> None:
        self.words, self.family = words, family
        self._ip = "ip" if family is Family.IPV4 else "ip6"

    def parse_part(self) -> Part:
        words = self.words
        statement = _STATEMENTS.get(words.peek())
        if statement is not None:
            words.take()
            return statement(self)
        for name, key, type_ in _SETTABLE:
            if words.skip("meta", name, "set"):
                return SetMeta(key, self._parse_value(type_))
        return self._parse_match()

    def _parse_match(self) -> Match:
        words = self.words
        key = parse_fields(words, self.family)
        if words.skip("vmap"):
            return VerdictMap(*self._parse_lookup(key))
        ahead = 1 if words.peek() == "!=" else 0
        if words.peek(ahead).startswith("@"):
            negated = words.skip("!=")
            return Member(*self._parse_lookup(key), negated)
        if len(key) > 1:
            words.fail("a concatenation can only be looked up in a set (@name) or map (vmap @name)")
        (field,) = key
        if words.skip(">"):
            if field.size != 8:
                words.fail_before("only a count can be compared by its size")
            return Exceeds(field, words.number(0xFFFFFFFFFFFFFFFF))
        if field.type in (Type.CT_STATE, Type.CT_STATUS):
            return Bits(field, parse_constant(words, field.type).value)
        return self._parse_comparison(field)

    def _parse_comparison(self, field: Field) -> Compare:
        words, mask = self.words, b""
        if words.peek() in ("and", "&"):
            words.take()
            if field.size != 4 or field.order is not Order.HOST:
                words.fail_before("only a number of four bytes can be masked")
            mask = parse_constant(words, field.type).value
        negated = words.skip("!=")
        constant = parse_constant(words, field.type)
        return Compare(field, constant.value, mask or constant.mask or b"", negated)

    def _parse_lookup(self, key: tuple[Field, ...]) -> tuple[tuple[Field, ...], str]:
        name = self.words.reference()
        return self._place_fields(key), name

    def _place_fields(self, fields: tuple[Field, ...], word: int = 0) -> tuple[Field, ...]:
        """Raise RuleSyntaxError if the fields exceed the registers from `word` on."""
        if word + count_words(fields) > kernel.REGISTER_WORDS:
            self.words.fail_before(f"{4 * count_words(fields)} bytes do not fit into the 64 bytes of registers")
        return fields

    def _parse_value(self, type_: Type) -> bytes | Computed | Mapped | Numgen | Jhash:
        words = self.words
        if words.skip("numgen"):
            word = words.take("inc or random")
            if word not in ("inc", "random"):
                words.fail_before("expected inc or random")
            return Numgen(word == "inc", *self._parse_range())
        if words.skip("jhash"):
            sources = self._place_fields(parse_fields(words, self.family), GROUP)
            words.expect("mod")
            modulus = words.number()
            words.expect("seed")
            return Jhash(sources, modulus, words.number(), self._parse_offset(modulus))
        if type_ is Type.CLASS_ID and words.skip("none"):
            return bytes(4)
        fields = parse_fields(words, self.family)
        if words.skip("map"):
            return Mapped(*self._parse_lookup(fields))
        if len(fields) > 1:
            words.fail("expected 'map' after a concatenation")
        if fields[0].type is not type_:
            words.fail_before("this is of another type")
        operator = _OPERATORS.get(words.take("or, or xor"), "")
        if not operator:
            words.fail_before("expected or, or xor")
        return Computed(fields[0], operator, words.number())

    def _parse_range(self) -> tuple[int, int]:
        self.words.expect("mod")
        modulus = self.words.number()
        return modulus, self._parse_offset(modulus)

    def _parse_offset(self, modulus: int) -> int:
        offset = self.words.number() if self.words.skip("offset") else 0
        if not 1 <= modulus <= 0xFFFFFFFF - offset:
            self.words.fail_before("a modulus is at least 1, and with the offset at most 4294967295")
        return offset

    def verdict(self, code: Code) -> VerdictData:
        chain = self.words.take("a chain's name") if code in (Code.JUMP, Code.GOTO) else ""
        return VerdictData(code, chain)

    def reject(self) -> RejectWith:
        return RejectWith(self.words.skip("with", "tcp", "reset"))

    def masquerade(self) -> SourceNat:
        self.words.expect("fully-random")
        return SourceNat()

    def dnat(self) -> DnatTo | DnatMap:
        words = self.words
        words.expect(self._ip, "to")
        if "map" in words:
            key = parse_fields(words, self.family)
            words.expect("map")
            return DnatMap(*self._parse_lookup(key))
        word = words.take("an address")
        try:
            address = parse_address(word)
        except ValueError as error:
            words.fail_before(str(error))
        if len(address) * 8 != self.family.bits:
            words.fail_before(f"{word} is of the other family")
        return DnatTo(address)

    def update_set(self, operation: int) -> UpdateSet:
        words = self.words
        name = words.reference()
        words.expect("{")
        key = self._place_fields(parse_fields(words, self.family))
        seconds = words.seconds() if words.skip("timeout") else 0
        value = parse_field(words, self.family) if words.skip(":") else None
        if value is not None:
            self._place_fields((value,), find_data_word(key))
        words.expect("}")
        return UpdateSet(name, operation, key, seconds, value)

    def add_flow(self) -> AddFlow:
        self.words.expect("add")
        return AddFlow(self.words.reference())


def _is_terminal(part: Part) -> bool:
    return isinstance(part, RejectWith) or (isinstance(part, VerdictData) and part.code is not Code.JUMP)


def count_words(key: tuple[Field, ...]) -> int:
    return sum(field.words for field in key)


def find_data_word(key: tuple[Field, ...]) -> int:
    """Return the first word of the register group behind a key."""
    return -(-count_words(key) // GROUP) * GROUP


_SETTABLE = (("priority", kernel.META_PRIORITY, Type.CLASS_ID), ("mark", kernel.META_MARK, Type.MARK))
_OPERATORS = {"or": "or", "|": "or", "xor": "xor", "^": "xor"}
_STATEMENTS: dict[str, Callable[[_Parser], Statement]] = {
    "counter": lambda _: Counter(),
    "reject": _Parser.reject,
    "masquerade": _Parser.masquerade,
    "dnat": _Parser.dnat,
    "update": partial(_Parser.update_set, operation=kernel.DYNSET_UPDATE),
    "delete": partial(_Parser.update_set, operation=kernel.DYNSET_DELETE),
    "flow": _Parser.add_flow,
    "jump": partial(_Parser.verdict, code=Code.JUMP),
    "goto": partial(_Parser.verdict, code=Code.GOTO),
    "drop": partial(_Parser.verdict, code=Code.DROP),
    "accept": partial(_Parser.verdict, code=Code.ACCEPT),
    "return": partial(_Parser.verdict, code=Code.RETURN),
}
