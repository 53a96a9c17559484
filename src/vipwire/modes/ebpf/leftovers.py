"""Removes what ebpf mode has left once another mode runs: programs, maps, and their names in bpffs.

Programs that send sockets to endpoints go at once. Those that tell a socket from whom a datagram came go at the next
look, a second later: answers may be on their way. Connections that were made so are direct, and stay as they are.
"""

import contextlib
from typing import Final

from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.net import Family
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.remains import RemovalResult
from vipwire.modes.xtables.ownership import Place

_FORTH: Final = tuple(hook for hook in HOOKS if hook.startswith(("connect", "sendmsg")))


class ProgramRemains:
    """What is in bpffs for this node. Both families share it: the first that looks removes it."""

    def __init__(self, family: Family, pinned: NodePins) -> None:
        self._family, self._pins = family, pinned

    def before_rules(self) -> RemovalResult:
        """Take the programs out of force; remove everything once those that translate have been gone for a while."""
        if not self._pins.exists:
            return RemovalResult()
        with contextlib.closing(self._pins):
            if any((self._pins.folder / "links" / hook).exists() for hook in _FORTH):
                self._pins.take_out(_FORTH)
                return RemovalResult(waiting=("programs that know whose answers come",))
            self._pins.remove()
        return RemovalResult(removed=("programs and maps of ebpf mode",))

    def held(self) -> frozenset[Place]:
        """Hold nothing."""
        return frozenset()

    def after_rules(self) -> RemovalResult:
        """Do nothing more."""
        return RemovalResult()
