"""Puts the backends of userspace mode together."""

from collections.abc import Iterable

from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl
from vipwire.modes.userspace.kernel import UserspaceBackend, sights
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.modes.userspace.tool import choose

SYSCTLS = (Sysctl("net/ipv4/tcp_tw_reuse", 1),)
"""A relay is a client of its endpoints: without it, 28,000 connections a minute to one endpoint use up all ports."""


def build(families: Iterable[Family], choices: Choices, *, prepare: bool) -> dict[Family, UserspaceBackend]:
    """Build a backend for each family. With `prepare` it is going to be run: rules are tried, relays may be started.

    Raise UnsupportedError if this machine cannot have the rules that are wanted.
    """
    tools = {family: choose(family, tried=prepare) if choices.bind is Bind.RULES else None for family in families}
    sight = sights(tools.values())
    return {family: UserspaceBackend(family, choices, tool, sight, runs=prepare) for family, tool in tools.items()}


def leftovers(families: Iterable[Family], *, rules: bool = True) -> list[UserspaceBackend]:
    """Build what removes all that this mode has left, whatever it was set to; without `rules` only relays."""
    choices = Choices() if rules else Choices(bind=Bind.NONE)
    return [UserspaceBackend(family, choices, None, runs=False) for family in families]
