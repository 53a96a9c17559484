"""Whether the kernel has what was sent: it answers in its own words, which later kernels may add to.

An attribute that was sent must come back with the same value; counts are not compared. Attributes that were not sent
may only be zero: anything else would be a different rule.
"""

from collections.abc import Iterator
from contextlib import suppress

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import attribute, attributes, number_of, text_of, walk
from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import wire
from vipwire.modes.nftables.language.emit import CompiledRule

_NAME, _DATA = 1, 2
_OPERATION, _OPERAND = 2, 3  # NFTA_CMP_OP, NFTA_CMP_DATA
_COUNTER = "counter"


def same_rule(sent: CompiledRule, dumped: bytes) -> bool:
    """Report whether a dumped rule's expressions are those that were sent. Comments are not looked at."""
    if sent.expressions == dumped:
        return True
    try:
        ours, theirs = list(_expressions(sent.expressions)), list(_expressions(dumped))
    except DecodeError:
        return False
    return len(ours) == len(theirs) and all(map(_same_expression, ours, theirs))


def _expressions(data: bytes) -> Iterator[tuple[str, dict[int, memoryview]]]:
    for _, value in walk(data):
        found = attributes(value)
        if _NAME not in found:
            raise DecodeError("an expression has no name")
        yield text_of(found[_NAME]), attributes(found.get(_DATA, memoryview(b"")))


def _same_expression(ours: tuple[str, dict[int, memoryview]], theirs: tuple[str, dict[int, memoryview]]) -> bool:
    if ours[0] != theirs[0]:
        return False
    return ours[0] == _COUNTER or _covered(ours[1], theirs[1])


def _covered(sent: dict[int, memoryview], dumped: dict[int, memoryview]) -> bool:
    return all(kind in dumped and dumped[kind] == value for kind, value in sent.items()) and not any(
        any(value) for kind, value in dumped.items() if kind not in sent
    )


_UNLISTED = frozenset({wire.SET_ID})
_DECISIVE = (wire.SET_FLAGS, wire.SET_DATA_TYPE, wire.SET_TIMEOUT, wire.SET_EXPRESSION)
"""What makes a set another one if it is there without having been sent."""


def same_set(sent: bytes, dumped: bytes) -> bool:
    """Report whether a dumped set (`SetDeclaration.attributes`) is what `compile_set` made, nft's notes included."""
    try:
        ours, theirs = attributes(sent), attributes(dumped)
        return all(
            _same_part(kind, value, theirs.get(kind, memoryview(b"")))
            for kind, value in ours.items()
            if kind not in _UNLISTED
        ) and not any(any(theirs.get(kind, b"")) for kind in _DECISIVE if kind not in ours)
    except DecodeError:
        return False


def _same_part(kind: int, sent: memoryview, dumped: memoryview) -> bool:
    match kind:
        case wire.SET_EXPRESSION:  # the counter's counts
            return [name for name, _ in _expressions(_alone(sent))] == [
                name for name, _ in _expressions(_alone(dumped))
            ]
        case wire.SET_DATA_LENGTH if not any(sent):  # of verdicts; the kernel tells the size of its own struct
            return True
    # The kernel does not list flags of 0.
    return sent == dumped or (not dumped and not any(sent))


def _alone(expression: memoryview) -> bytes:
    """Return an expression as a list of one."""
    return attribute(wire.LIST_ELEMENT, bytes(expression))


def limit(expressions: bytes) -> int:
    """Return the number behind a rule's `>`; 0 if it has none, or cannot be understood."""
    with suppress(DecodeError, KeyError):
        for name, found in _expressions(expressions):
            if name == "cmp" and number_of(found[_OPERATION]) == kernel.CMP_GT:
                return number_of(attributes(found[_OPERAND])[wire.DATA_VALUE])
    return 0


def describe(expressions: bytes) -> str:
    """Render a rule that vipwire did not write, for a message: the names of its expressions."""
    try:
        return " ".join(name for name, _ in _expressions(expressions)) or "empty"
    except DecodeError:
        return "undecodable"
