"""Rules: matches and statements in the order of the text, compiled to the expressions that nft 1.0.6 sends for it."""

import functools
from collections.abc import Callable, Collection

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables.userdata import LONGEST_COMMENT
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes.nftables.language import statements
from vipwire.modes.nftables.language.draft import Draft
from vipwire.modes.nftables.language.fields import Type
from vipwire.modes.nftables.language.matches import match
from vipwire.modes.nftables.language.scan import Scanner


class CompiledRule(Value, frozen=True):
    """A rule as the kernel takes it, and the comment that nft keeps beside it."""

    expressions: bytes
    comment: str = ""


def compile_rule(
    text: str, family: Family, intervals: Collection[str] = (), addresses: Collection[str] = ()
) -> CompiledRule:
    """Compile one rule; raise RuleSyntaxError on anything outside of the subset.

    `intervals` names the sets with the flag `interval` that it may look into: their keys are loaded in network order.
    `addresses` names the maps to addresses without a port, which `dnat` may use: the port is kept then.
    """
    words = Scanner(text)
    draft = Draft(words, family, intervals, addresses)
    if not words:
        words.fail("a rule cannot be empty")
    comment = ""
    while words:
        if words.skip("comment"):
            comment = _comment(words)
        elif draft.finished:
            words.fail("nothing but a comment can follow a verdict")
        else:
            _part(draft)
    return CompiledRule(b"".join(draft.parts), comment)


def _part(draft: Draft) -> None:
    words = draft.words
    statement = _STATEMENTS.get(words.peek())
    if statement is not None:
        words.take()
        statement(draft)
        return
    for name, key, type_ in _SETTABLE:
        if words.skip("meta", name, "set"):
            statements.set_meta(draft, key, type_)
            return
    match(draft)


def _comment(words: Scanner) -> str:
    """Read what follows `comment`, which ends the rule."""
    comment = words.quoted()
    if len(comment.encode()) > LONGEST_COMMENT:
        words.fail_before(f"a comment has at most {LONGEST_COMMENT} bytes")
    if words:
        words.fail("a comment is the last thing in a rule")
    return comment


_SETTABLE = (("priority", kernel.META_PRIORITY, Type.CLASS_ID), ("mark", kernel.META_MARK, Type.MARK))

_STATEMENTS: dict[str, Callable[[Draft], None]] = {
    "counter": statements.counter,
    "reject": statements.reject,
    "masquerade": statements.masquerade,
    "dnat": statements.dnat,
    "add": functools.partial(statements.dynset, operation=kernel.DYNSET_ADD),
    "update": functools.partial(statements.dynset, operation=kernel.DYNSET_UPDATE),
    "delete": functools.partial(statements.dynset, operation=kernel.DYNSET_DELETE),
    "flow": statements.flow_add,
    "jump": functools.partial(statements.to_chain, code=Code.JUMP),
    "goto": functools.partial(statements.to_chain, code=Code.GOTO),
    "drop": functools.partial(statements.verdict, code=Code.DROP),
    "accept": functools.partial(statements.verdict, code=Code.ACCEPT),
    "return": functools.partial(statements.verdict, code=Code.RETURN),
}
