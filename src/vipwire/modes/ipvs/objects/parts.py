"""Splits a difference of ipvs mode's objects by kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vipwire.linux.netlink.ipset import IpsetSpec
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, VirtualServer
from vipwire.modes.ipvs.objects.names import (
    Ipset,
    MarkRule,
    Object,
    ObjectKey,
    RangeRule,
    Receiver,
    Rules,
    SetEntry,
    Vip,
    VipRoute,
)
from vipwire.modes.xtables.save import ChainName
from vipwire.reconcile.delta import Delta


@dataclass(frozen=True, slots=True)
class DeltaByKind:
    """One difference for each kind of object."""

    sets: Delta[Ipset, IpsetSpec | None] = field(default_factory=Delta)
    entries: Delta[SetEntry, int] = field(default_factory=Delta)
    chains: Delta[ChainName, Rules] = field(default_factory=Delta)
    servers: Delta[VirtualServer, Scheduling] = field(default_factory=Delta)
    reals: Delta[RealServer, Forwarding] = field(default_factory=Delta)
    vips: Delta[Vip, None] = field(default_factory=Delta)
    mark_rules: Delta[MarkRule, None] = field(default_factory=Delta)
    routes: Delta[VipRoute, None] = field(default_factory=Delta)
    receivers: Delta[Receiver, Method] = field(default_factory=Delta)
    rules: Delta[RangeRule, int] = field(default_factory=Delta)


def partition_delta(delta: Delta[ObjectKey, Object]) -> DeltaByKind:
    parts = DeltaByKind()
    by_type: Mapping[type, Delta[Any, Any]] = {
        Ipset: parts.sets,
        SetEntry: parts.entries,
        ChainName: parts.chains,
        VirtualServer: parts.servers,
        RealServer: parts.reals,
        Vip: parts.vips,
        MarkRule: parts.mark_rules,
        VipRoute: parts.routes,
        Receiver: parts.receivers,
        RangeRule: parts.rules,
    }
    for key, value in delta.added.items():
        by_type[type(key)].added[key] = value
    for key, pair in delta.changed.items():
        by_type[type(key)].changed[key] = pair
    for key, value in delta.removed.items():
        by_type[type(key)].removed[key] = value
    return parts


def invert_delta(delta: Delta[ObjectKey, Object]) -> Delta[ObjectKey, Object]:
    return Delta(delta.removed, {key: (new, old) for key, (old, new) in delta.changed.items()}, delta.added)
