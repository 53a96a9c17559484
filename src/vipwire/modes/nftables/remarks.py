"""What `check` and `status` say of nftables mode beside its rules: whether connections are offloaded."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError, VipwireError
from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.devices import find_flowtable
from vipwire.modes.nftables.probe import obstacle_to_offloading
from vipwire.modes.spec import Remark

_WHAT: Final = "offloading"


def remarks(config: Config) -> Iterator[Remark]:
    """Try a flowtable, if one is asked for, and say how it stands."""
    if not config.nftables.offload_packet_threshold:
        return
    try:
        obstacle = obstacle_to_offloading(Family)
    except OSError as error:
        obstacle = f"it cannot be tried: {error}"
    if obstacle:
        said, _, remedy = obstacle.partition("; ")
        yield Remark(_WHAT, said, remedy, bad=True)
    else:
        yield Remark(_WHAT, "this kernel can offload connections")
        yield from standing(config)


def standing(config: Config) -> Iterator[Remark]:
    """Say of each family at how many interfaces connections are offloaded, and how many are. Nothing is tried."""
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
            yield Remark(_WHAT, f"{family.value}: at {places}{_now(family)}")
        elif wanted:
            yield Remark(_WHAT, f"{family.value}: there is no flowtable, all packets meet the rules", bad=True)


def _now(family: Family) -> str:
    """Say how many connections are offloaded; "" where nobody can tell."""
    with suppress(UnsupportedError, DumpInterruptedError), FlowTable() as table:
        count = table.offloaded(family)
        return f", {count} connection{'s' * (count != 1)} now"
    return ""
