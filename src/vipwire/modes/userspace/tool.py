"""Chooses the variant of iptables that userspace mode writes its rules with, and checks that it works."""

from typing import Final

from vipwire.errors import CommitError, UnsupportedError
from vipwire.model.net import Family
from vipwire.modes.xtables.refusal import LockedError
from vipwire.modes.xtables.tool import PROGRAM, Tool, in_use

PURPOSE: Final = "userspace mode"
LIMIT_SECONDS: Final = 60.0
"""For the few rules of this mode; the relay's listeners wait meanwhile."""
_PROBE: Final = (
    "*nat\n:KUBE-PORTALS-PROBE - [0:0]\n"
    '-A KUBE-PORTALS-PROBE -p tcp -m comment --comment "a/b" -m tcp --dport 1 -m addrtype --dst-type LOCAL '
    "-m conntrack --ctstate NEW -j REDIRECT --to-ports 1\n"
    "-F KUBE-PORTALS-PROBE\n-X KUBE-PORTALS-PROBE\nCOMMIT\n"
)
"""Makes a rule that nobody reaches, and removes it: NAT is what a kernel or a container lacks."""


def choose(family: Family, *, tried: bool) -> Tool:
    """Choose the variant that this node uses; with `tried` only one with which this kernel can have our rules.

    A kernel may list the tables of a variant and refuse every rule: then the other one is taken. Raise
    UnsupportedError, with what each said, if there is none.
    """
    tools, errors = in_use(family, PURPOSE, limit=LIMIT_SECONDS)
    if not tools and not errors:
        raise UnsupportedError(
            f"{PURPOSE} needs {PROGRAM[family]}-restore, which is not installed: install the package iptables, "
            "or do without rules (--userspace-bind)"
        )
    for tool in tools:
        if not tried:
            return tool
        try:
            tool.restore(_PROBE)
        except LockedError:  # what is missing will show when rules are refused
            return tool
        except CommitError as error:
            errors.append(str(error))
        else:
            return tool
    raise UnsupportedError(
        f"{PURPOSE} needs NAT rules, and this kernel or user may not have them: {'; '.join(errors)}; "
        "load iptable_nat, xt_REDIRECT, xt_addrtype and xt_conntrack, give CAP_NET_ADMIN, "
        "or do without rules (--userspace-bind)"
    )
