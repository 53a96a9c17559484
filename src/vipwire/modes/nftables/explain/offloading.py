"""Describes the flowtables for operators: whether this kernel can offload, and how much it offloads now."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError, VipwireError
from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.inspection import Remark
from vipwire.modes.nftables.flowtable import find_flowtable
from vipwire.modes.nftables.probe import find_offloading_obstacle

_WHAT: Final = "offloading"


def find_remarks(config: Config) -> Iterator[Remark]:
    """Try a flowtable, if the configuration asks for one, and report the result."""
    if not config.nftables.offload_packet_threshold:
        return
    try:
        obstacle = find_offloading_obstacle(Family)
    except OSError as error:
        obstacle = f"it cannot be tried: {error}"
    if obstacle:
        said, _, remedy = obstacle.partition("; ")
        yield Remark(_WHAT, said, remedy, bad=True)
    else:
        yield Remark(_WHAT, "this kernel can offload connections")
        yield from find_standing_remarks(config)


def find_standing_remarks(config: Config) -> Iterator[Remark]:
    """Report for each family the number of offloading interfaces and offloaded connections. Tries nothing."""
    wanted = bool(config.nftables.offload_packet_threshold)
    for family in Family:
        try:
            with NetlinkSocket(NETLINK_NETFILTER) as sock:
                found = find_flowtable(sock, family)
        except (VipwireError, OSError) as error:
            if wanted:
                yield Remark(_WHAT, f"{family.value} cannot be read: {error}", bad=True)
            continue
        if found is not None:
            places = f"{len(found.devices)} interface{'s' * (len(found.devices) != 1)}"
            yield Remark(_WHAT, f"{family.value}: at {places}{_count_offloaded(family)}")
        elif wanted:
            yield Remark(_WHAT, f"{family.value}: there is no flowtable, all packets meet the rules", bad=True)


def _count_offloaded(family: Family) -> str:
    """Return the number of offloaded connections in words; "" if unknown."""
    with suppress(UnsupportedError, DumpInterruptedError), FlowTable() as table:
        count = table.count_offloaded(family)
        return f", {count} connection{'s' * (count != 1)} now"
    return ""
