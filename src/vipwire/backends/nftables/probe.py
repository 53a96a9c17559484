"""Finds out by trying whether this kernel can have the table of nftables mode, without ever having it.

A kernel may have nf_tables and not its parts: no tables of a family, no NAT, no maps. Which these are no list tells.
So what belongs to no Service is written in one transaction whose last step cannot succeed: the kernel carries out all
of it, says what it lacks, and takes everything back before anybody could see it.
"""

import errno
from collections.abc import Iterable
from typing import Final

from vipwire.backends.nftables.script import DescribedOperation, steps
from vipwire.backends.nftables.skeleton import node_objects
from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.netlink.nftables import encode
from vipwire.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.plan.node import NodePlan
from vipwire.reconcile.delta import Delta

_LACKING: Final = frozenset({errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
"""What a kernel says of what it does not have. Anything else is for the first sync to say: it may pass."""
_NOWHERE: Final = "vipwire-trial"
"""No table of this name is ever made: to delete it fails."""


def probe(families: Iterable[Family]) -> None:
    """Raise UnsupportedError, with what the kernel lacks and how to get it, if it cannot have our table."""
    with NetlinkSocket(NETLINK_NETFILTER) as sock:
        for family in families:
            _try(sock, family)


def _try(sock: NetlinkSocket, family: Family) -> None:
    tried = steps(family, Delta(added=dict(node_objects(NodePlan(family)))), recreate=True)
    tried.append(DescribedOperation(encode.delete_table(family, _NOWHERE), "delete no table"))
    first = sock.sequence(len(tried) + 2)
    sock.send(encode.transaction([step.operation for step in tried], first))
    for answer in sock.acknowledgements():
        refused = encode.refused(tried, first, answer.sequence)
        if answer.errno in _LACKING and refused is not tried[-1]:
            raise _unsupported(family, refused.words if refused else "a transaction", answer.errno)


def _unsupported(family: Family, words: str, code: int) -> UnsupportedError:
    named = errno.errorcode.get(code, code)
    return UnsupportedError(
        f"nftables mode cannot be used here: the kernel has nf_tables, but does not take `{words}` "
        f"for {family.value} ({named}): load nft_chain_nat, nft_ct, nft_masq, nft_numgen and nft_reject, "
        f"or use a kernel that has them and CONFIG_NF_TABLES_{family.value.upper()}"
    )
