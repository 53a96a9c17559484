"""The grammar of rules: `parse_rule` reads the text of one rule into parts, which `emit` and `explain` consume.

Anything outside of the subset of nft's language is a RuleSyntaxError. `Part` is closed: both consumers match every
shape, so that whatever compiles can be explained.
"""

from collections.abc import Callable
from functools import lru_cache, partial

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables.elements import Verdict
from vipwire.linux.netlink.nftables.userdata import LONGEST_COMMENT
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model.net import Family, parse_address
from vipwire.model.value import Value
from vipwire.modes.nftables.language.fields import (
    L4PROTO,
    PROTOCOLS,
    Field,
    Header,
    Order,
    Type,
    parse_field,
    parse_fields,
)
from vipwire.modes.nftables.language.scan import Scanner
from vipwire.modes.nftables.language.values import BITMASKS, Constant, is_class_id, parse_constant

GROUP = 4
"""Registers are laid out in groups of four words. A key begins at the first word, a hash's input behind a group."""

# matches


class Compare(Value, frozen=True):
    """`ip daddr 10.0.0.0/8`, `meta mark and 0x4000 != 0`. Only as many bytes as the constant has are compared."""

    field: Field
    constant: bytes
    mask: bytes = b""
    negated: bool = False


class Bits(Value, frozen=True):
    """`ct state new,related`: any of the bits. With `==` or `!=` (`exactly`) the whole value, of one bit."""

    field: Field
    bits: bytes
    exactly: bool = False
    negated: bool = False


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


# statements


class Counter(Value, frozen=True):
    """`counter`; counts that a listing shows are not taken over."""


class Reject(Value, frozen=True):
    """`reject with tcp reset`, or by an ICMP message with a code."""

    code: int | None = None


class Masquerade(Value, frozen=True):
    """`masquerade fully-random`."""

    flags: int


class DnatTo(Value, frozen=True):
    """`dnat to 10.0.0.1:80`; without a port the packet keeps its own."""

    address: bytes
    port: int | None


class DnatMap(Value, frozen=True):
    """`dnat ip to ip daddr . th dport map @map`."""

    key: tuple[Field, ...]
    map: str


class Computed(Value, frozen=True):
    """A value of a field, after `and`, `or` or `xor` with a number; `operator` is empty for the field alone."""

    field: Field
    operator: str = ""
    number: int = 0


class Mapped(Value, frozen=True):
    """A value that a map has for a key."""

    key: tuple[Field, ...]
    map: str


class SetMeta(Value, frozen=True):
    """`meta mark set …`, `meta priority set …`; `meta` is the kernel's key."""

    meta: int
    value: bytes | Computed | Mapped


class UpdateSet(Value, frozen=True):
    """`add @set { KEY timeout 3h : VALUE }`, update, delete; `timeout` in milliseconds, 0 for the set's own."""

    set: str
    operation: int
    key: tuple[Field, ...]
    timeout: int = 0
    value: Field | None = None


class AddFlow(Value, frozen=True):
    """`flow add @flowtable`."""

    table: str


Match = Compare | Bits | Exceeds | Member | VerdictMap
Statement = Verdict | Counter | Reject | Masquerade | DnatTo | DnatMap | SetMeta | UpdateSet | AddFlow
Part = Match | Statement


class Rule(Value, frozen=True):
    """One rule: its parts in the order of the text, and its comment."""

    parts: tuple[Part, ...]
    comment: str = ""


@lru_cache(maxsize=512)  # an explanation walks the same rules once for each slot
def parse_rule(text: str, family: Family) -> Rule:
    """Read one rule; raise RuleSyntaxError for anything outside of the subset."""
    return _Parser(text, family).rule()


class _Parser:
    def __init__(self, text: str, family: Family) -> None:
        self.words, self.family = Scanner(text), family
        self.parts: list[Part] = []
        self.protocol = 0
        """The protocol that an earlier match has made sure of; 0 if none has."""

    def rule(self) -> Rule:
        words, comment = self.words, ""
        if not words:
            words.fail("a rule cannot be empty")
        while words:
            if words.skip("comment"):
                comment = self._comment()
            elif self.parts and _ends(self.parts[-1]):
                words.fail("nothing but a comment can follow a verdict")
            else:
                self._part()
        return Rule(tuple(self.parts), comment)

    def _part(self) -> None:
        words = self.words
        statement = _STATEMENTS.get(words.peek())
        if statement is not None:
            words.take()
            self.parts.append(statement(self))
            return
        for name, key, type_ in _SETTABLE:
            if words.skip("meta", name, "set"):
                self.parts.append(SetMeta(key, self._value(type_)))
                return
        self.parts.append(self._match())

    def _comment(self) -> str:
        comment = self.words.quoted()
        if len(comment.encode()) > LONGEST_COMMENT:
            self.words.fail_before(f"a comment has at most {LONGEST_COMMENT} bytes")
        if self.words:
            self.words.fail("a comment is the last thing in a rule")
        return comment

    def _match(self) -> Match:
        words = self.words
        key = parse_fields(words, self.family)
        for field in key:
            if isinstance(field, Header):
                self._need_protocol(field.protocol)
        if words.skip("vmap"):
            return VerdictMap(*self._looked_up(key))
        ahead = 1 if words.peek() in ("!=", "==") else 0
        if words.peek(ahead).startswith("@"):
            negated = words.take() == "!=" if ahead else False
            return Member(*self._looked_up(key), negated)
        if words.skip(">"):
            if len(key) > 1 or key[0].size != 8:
                words.fail_before("only a count can be compared by its size")
            return Exceeds(key[0], words.number(0xFFFFFFFFFFFFFFFF))
        if len(key) > 1:
            words.fail("a concatenation can only be looked up in a set (@name) or map (vmap @name)")
        return self._comparison(key[0])

    def _comparison(self, field: Field) -> Compare | Bits:
        words, mask = self.words, b""
        if words.skip("and") or words.skip("&"):
            if field.size != 4 or field.order is not Order.HOST:
                words.fail_before("only a number of four bytes can be masked")
            mask = parse_constant(words, field.type).value
        operator = words.take() if words.peek() in ("!=", "==") else ""
        if words.peek() == "{":
            words.fail("declare a named set instead of listing values in the rule")
        constant: Constant = parse_constant(words, field.type)
        negated = operator == "!="
        if not mask and field.type in BITMASKS:
            if operator and int.from_bytes(constant.value).bit_count() != 1:
                words.fail_before(f"{operator} takes one name here")
            return Bits(field, constant.value, bool(operator), negated)
        if field.type is Type.PROTOCOL and not negated:
            self.protocol = constant.value[0]
        return Compare(field, constant.value, mask or constant.mask or b"", negated)

    def _need_protocol(self, protocol: int) -> None:
        """Add a match for the packet's protocol, unless it is known."""
        if protocol not in (0, self.protocol):
            self.parts.append(Compare(L4PROTO, bytes((protocol,))))
            self.protocol = protocol

    def _looked_up(self, key: tuple[Field, ...]) -> tuple[tuple[Field, ...], str]:
        """Read the name of the set or map in which a key is looked up."""
        name = self.words.reference()
        return self._fit(key, 0, key_scratch(key)), name

    def _fit(self, key: tuple[Field, ...], word: int, free: int) -> tuple[Field, ...]:
        """Fail if fields do not fit into the registers from `word` on, with intermediate values from `free` on."""
        if word + _words(key) > kernel.REGISTER_WORDS:
            self.words.fail_before(f"a key of {4 * _words(key)} bytes does not fit into the 64 bytes of registers")
        if any(field.scratch and free + field.scratch > kernel.REGISTER_WORDS for field in key):
            self.words.fail_before("what is hashed does not fit into the registers beside the key")
        return key

    def _value(self, type_: Type) -> bytes | Computed | Mapped:
        words = self.words
        first = words.peek()
        if is_class_id(first) if type_ is Type.CLASS_ID else first[:1].isdigit():
            return parse_constant(words, type_).value
        fields = parse_fields(words, self.family)
        if words.skip("map"):
            return Mapped(*self._looked_up(fields))
        if len(fields) > 1:
            words.fail("expected 'map' after a concatenation")
        if fields[0].type not in (type_, Type.INTEGER):
            words.fail_before("this is of another type")
        (field,) = self._fit(fields, 0, GROUP)
        if operator := _OPERATORS.get(words.peek(), ""):
            words.take()
            return Computed(field, operator, words.number())
        return Computed(field)

    def counter(self) -> Counter:
        if self.words.skip("packets"):
            self.words.number(0xFFFFFFFFFFFFFFFF)
            self.words.expect("bytes")
            self.words.number(0xFFFFFFFFFFFFFFFF)
        return Counter()

    def verdict(self, code: Code) -> Verdict:
        chain = self.words.take("a chain's name") if code in (Code.JUMP, Code.GOTO) else ""
        return Verdict(code, chain)

    def reject(self) -> Reject:
        words, codes = self.words, _UNREACHABLE[self.family]
        if not words.skip("with"):
            return Reject(codes["port-unreachable"])
        if words.skip("tcp", "reset"):
            self._need_protocol(PROTOCOLS["tcp"])
            return Reject()
        words.expect("icmp" if self.family is Family.IPV4 else "icmpv6")
        words.skip("type")
        word = words.take("a reason")
        if word not in codes:
            words.fail_before(f"{word!r} is none of {', '.join(codes)}")
        return Reject(codes[word])

    def masquerade(self) -> Masquerade:
        if self.words.skip("fully-random"):
            return Masquerade(kernel.NAT_FULLY_RANDOM)
        return Masquerade(kernel.NAT_RANDOM if self.words.skip("random") else 0)

    def dnat(self) -> DnatTo | DnatMap:
        words = self.words
        words.skip("ip" if self.family is Family.IPV4 else "ip6")
        words.expect("to")
        if "map" not in words:
            return self._constant_target()
        key = parse_fields(words, self.family)
        words.expect("map")
        return DnatMap(*self._looked_up(key))

    def _constant_target(self) -> DnatTo:
        words = self.words
        text = word = words.take()
        colon = port = ""
        if word.startswith("["):
            text, _, port = word[1:].partition("]")
            colon, port = port[:1], port[1:]
        elif self.family is Family.IPV4:
            text, colon, port = word.partition(":")
        try:
            address = parse_address(text)
        except ValueError as error:
            words.fail_before(str(error))
        if len(address) * 8 != self.family.bits:
            words.fail_before(f"{word} is of the other family")
        if not colon:
            return DnatTo(address, None)
        if not port.isdecimal() or not 0 < int(port) <= 0xFFFF:
            words.fail_before(f"{port!r} is not a port")
        if not self.protocol:
            words.fail_before("a port can only be translated after `meta l4proto` has been matched")
        return DnatTo(address, int(port))

    def update_set(self, operation: int) -> UpdateSet:
        words = self.words
        name = words.reference()
        words.expect("{")
        key = parse_fields(words, self.family)
        timeout = words.duration() if words.skip("timeout") else 0
        free = data_word(key)
        self._fit(key, 0, free)
        value = None
        if words.skip(":"):
            value = parse_field(words, self.family)
            self._fit((value,), free, free + GROUP)
        words.expect("}")
        return UpdateSet(name, operation, key, timeout, value)

    def add_flow(self) -> AddFlow:
        self.words.expect("add")
        return AddFlow(self.words.reference())


def _ends(part: Part) -> bool:
    return isinstance(part, Reject) or (isinstance(part, Verdict) and part.code is not Code.JUMP)


def _words(key: tuple[Field, ...]) -> int:
    return sum(field.words for field in key)


def data_word(key: tuple[Field, ...]) -> int:
    """Return the first word of the group behind a key."""
    return -(-_words(key) // GROUP) * GROUP


def key_scratch(key: tuple[Field, ...]) -> int:
    """Return the first word that is free for intermediate values while a key to look up is loaded."""
    return GROUP + _words(key) if len(key) > 1 else GROUP


_SETTABLE = (("priority", kernel.META_PRIORITY, Type.CLASS_ID), ("mark", kernel.META_MARK, Type.MARK))
_OPERATORS = {"and": "and", "&": "and", "or": "or", "|": "or", "xor": "xor", "^": "xor"}
_UNREACHABLE = {
    Family.IPV4: {"net-unreachable": 0, "host-unreachable": 1, "prot-unreachable": 2, "port-unreachable": 3},
    Family.IPV6: {"no-route": 0, "addr-unreachable": 3, "port-unreachable": 4},
}
_STATEMENTS: dict[str, Callable[[_Parser], Statement]] = {
    "counter": _Parser.counter,
    "reject": _Parser.reject,
    "masquerade": _Parser.masquerade,
    "dnat": _Parser.dnat,
    "add": partial(_Parser.update_set, operation=kernel.DYNSET_ADD),
    "update": partial(_Parser.update_set, operation=kernel.DYNSET_UPDATE),
    "delete": partial(_Parser.update_set, operation=kernel.DYNSET_DELETE),
    "flow": _Parser.add_flow,
    "jump": partial(_Parser.verdict, code=Code.JUMP),
    "goto": partial(_Parser.verdict, code=Code.GOTO),
    "drop": partial(_Parser.verdict, code=Code.DROP),
    "accept": partial(_Parser.verdict, code=Code.ACCEPT),
    "return": partial(_Parser.verdict, code=Code.RETURN),
}
