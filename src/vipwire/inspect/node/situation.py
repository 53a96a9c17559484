"""Collects the facts for the commands: for each family the plan, the rendered objects, and the kernel's objects.

If something cannot be read (no rights, no kernel support), `obstacle` says why, and the rest still works.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from vipwire.config.configuration import Config
from vipwire.config.modes import VIP_DEVICES
from vipwire.errors import VipwireError
from vipwire.inspect.node.family_view import EjectedUntil, FamilyView
from vipwire.inspect.node.slow_start import adopt_weights
from vipwire.inspect.node.source import node_name
from vipwire.linux.host.addresses import LocalAddress, read_addresses, select_global_addresses
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Protocol, parse_address
from vipwire.model.node import Drain, Node
from vipwire.modes.inspection import inspection_of
from vipwire.modes.registry import find_selected_mode
from vipwire.modes.spec import Mode
from vipwire.plan.ejection import EndpointKey
from vipwire.plan.planner import Planner
from vipwire.proxy_daemon.drains import drains_path, read_orders, seconds_since_boot, select_in_force
from vipwire.proxy_daemon.start.modes import build_modes, find_usable_families
from vipwire.proxy_daemon.start.record import read_record, read_recorded_node
from vipwire.proxy_daemon.sync.node_plan import Known, merge_configured_facts, plan_node
from vipwire.reconcile.counts import AdoptsSettings
from vipwire.reconcile.explainer import Explainer
from vipwire.watched_objects.store import Store


@dataclass(frozen=True)
class Situation:
    """The state of this node at one moment. `addresses` are this machine's own, without `vips`.

    `vips` are the addresses that the mode assigned to an interface of its own.
    """

    config: Config
    node_name: str
    store: Store
    addresses: tuple[LocalAddress, ...]
    sides: tuple[FamilyView, ...]
    vips: frozenset[Address] = frozenset()

    def find_view(self, family: Family) -> FamilyView | None:
        """Return a family's view; None if this machine does not have the family."""
        return next((side for side in self.sides if side.family is family), None)

    @cached_property
    def node(self) -> Node | None:
        """This node's Node object, completed by its last known facts as the proxy does."""
        name = self.node_name
        return merge_configured_facts(
            self.config, self.store.nodes.get(name), read_recorded_node(self.config.state_dir, name)
        )

    @cached_property
    def own_addresses(self) -> frozenset[Address]:
        """The addresses of this node: the machine's, and those of its Node object."""
        known = self.node.addresses if self.node else ()
        return frozenset((*(item.address for item in self.addresses), *known))


class Kernel:
    """The modes of all families, opened once, and the reasons why some could not be opened."""

    def __init__(self, config: Config) -> None:
        self.modes: dict[Family, Mode] = {}
        self.explainers: dict[Family, Explainer[Any, Any, Any] | None] = {}
        self.obstacles: dict[Family, str] = {}
        try:
            self.modes = build_modes(config, find_usable_families())
        except (VipwireError, OSError) as error:
            self.obstacles = dict.fromkeys(find_usable_families(), str(error))
        for mode in self.modes.values():
            with suppress(VipwireError, OSError):  # `observe` reports a kernel that cannot be read
                if isinstance(mode, AdoptsSettings):
                    mode.adopt_settings(config.explicit)
        explainer = inspection_of(find_selected_mode(config)).explainer
        self.explainers.update((family, explainer(family, mode)) for family, mode in self.modes.items())

    def close(self) -> None:
        for mode in self.modes.values():
            mode.close()


@contextmanager
def open_kernel(config: Config) -> Iterator[Kernel]:
    kernel = Kernel(config)
    try:
        yield kernel
    finally:
        kernel.close()


def observe_situation(config: Config, store: Store, kernel: Kernel) -> Situation:
    situation = plan_situation(config, store)
    seen = (
        with_observed_rules(
            side,
            kernel.modes.get(side.family),
            kernel.explainers.get(side.family),
            kernel.obstacles.get(side.family, ""),
        )
        for side in situation.sides
    )
    return replace(situation, sides=tuple(adopt_weights(side, store, situation.own_addresses) for side in seen))


def plan_situation(config: Config, store: Store, drained: frozenset[Drain] | None = None) -> Situation:
    """Read only the plan; with the drains in `drained` instead of this node's, unless None."""
    addresses, vips = read_machine_addresses()
    drained = read_drained(config) if drained is None else drained
    ejected = read_ejected(config)
    sides = tuple(
        plan_family(config, store, family, addresses, drained, ejected) for family in find_usable_families()
    )
    return Situation(config, node_name(config), store, addresses, sides, vips)


def read_machine_addresses() -> tuple[tuple[LocalAddress, ...], frozenset[Address]]:
    """Read this machine's own addresses, and those that a mode assigned."""
    found = read_addresses()
    given = frozenset(item.address for item in found if item.interface in VIP_DEVICES)
    return tuple(item for item in found if item.interface not in VIP_DEVICES), given


def read_drained(config: Config) -> frozenset[Drain]:
    """Read this node's drains. Raise ConfigError if the file cannot be read."""
    return select_in_force(read_orders(drains_path(config.state_dir, node_name(config))), seconds_since_boot())


def read_ejected(config: Config) -> EjectedUntil:
    """Read the ejected endpoints from the record of this network namespace's proxy; they outlast the proxy."""
    _, record = read_record(config.state_dir)
    found: EjectedUntil = {}
    for each in record.ejected if record is not None else ():
        key = EndpointKey(Protocol(each.protocol), parse_address(each.address), each.port)
        found.setdefault(ObjectName(each.namespace, each.service), {})[key] = each.until
    return found


def read_connected(config: Config) -> frozenset[tuple[Address, int]]:
    """Read the API server's endpoints to which this network namespace's proxy connects, from its record."""
    _, record = read_record(config.state_dir)
    return frozenset((parse_address(text), port) for text, port in record.api_servers) if record else frozenset()


def plan_family(
    config: Config,
    store: Store,
    family: Family,
    addresses: Sequence[LocalAddress],
    drained: frozenset[Drain] = frozenset(),
    ejected: EjectedUntil | None = None,
) -> FamilyView:
    """Plan one family as the proxy does, with these drained and ejected endpoints."""
    name = node_name(config)
    machine = select_global_addresses(addresses)
    known = Known(read_recorded_node(config.state_dir, name), read_connected(config))
    node = plan_node(config, family, name, store, machine, drained, known)
    planner = Planner(node)
    ejected = ejected or {}
    planner.ejected_elsewhere = {service: frozenset(each) for service, each in ejected.items()}
    planner.update(store.services, store.view)
    return FamilyView(family, node, planner.plans, ejected=ejected)


def with_observed_rules(
    side: FamilyView, mode: Mode | None, explainer: Explainer[Any, Any, Any] | None, obstacle: str = ""
) -> FamilyView:
    """Add the objects that a mode renders and those in the kernel; `obstacle` says why `mode` is None."""
    if mode is None:
        return replace(side, obstacle=obstacle)
    side = replace(
        side,
        mode=mode,
        explainer=explainer,
        node_objects=mode.render_node(side.node),
        rendered={name: mode.render(plan) for name, plan in side.plans.items()},
    )
    try:
        seen = mode.observe()
        remains = explainer.describe_foreign_objects() if explainer is not None and not seen else ""
    except (VipwireError, OSError) as error:
        refused = isinstance(error, OSError) and error.errno in (errno.EPERM, errno.EACCES)
        reason = "run as root, or with the capability CAP_NET_ADMIN" if refused else error
        return replace(side, obstacle=f"vipwire cannot read the kernel's objects: {reason}")
    return replace(side, observed=seen, remains=remains)
