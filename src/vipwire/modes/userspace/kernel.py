"""userspace mode's backend: configures the relay and leads packets to it. One instance serves one family.

A commit goes in steps, so that no rule leads to a missing listener:

    new and changed fronts, deleted node ports ▸ rules, in one run of iptables-restore ▸ deleted fronts

If the kernel refuses a step, vipwire undoes the earlier steps and raises the error. The relay starts with the first
front and outlives vipwire. If the relay ends, `changed` and `housekeep` notice, and a new relay gets all fronts.
"""

import logging
import time
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from vipwire.errors import CommitError
from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.model.net import Address, Family, Protocol, format_endpoint
from vipwire.model.problem import Problem
from vipwire.modes.userspace.counts import count_by_service
from vipwire.modes.userspace.entrance import Entrance, list_entrances
from vipwire.modes.userspace.mode import find_shortcomings
from vipwire.modes.userspace.names import FILTER, TABLES, Front, Key, Value, describe_key
from vipwire.modes.userspace.render import render_service
from vipwire.modes.userspace.script import Ports, read_rules, write_removal, write_script
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.modes.userspace.skeleton import build_node_objects
from vipwire.modes.xtables.tool import IptablesTool, Variant, find_tools_with_tables
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Frontend, ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.counts import Counts
from vipwire.reconcile.delta import Delta, SentBytes
from vipwire.relay.client import Remote, ask_counts, relay_name
from vipwire.relay.messages import Listener, RelaySettings

PURPOSE: Final = "userspace mode"
LIMIT_SECONDS: Final = 60.0
"""Enough for this mode's few rules; the relay's listeners wait meanwhile."""
_LOOK_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("vipwire.relay")


class UserspaceBackend:
    """The relay and the rules of one family, in the network namespace of the calling thread.

    `tool` is None in settings without rules, `sight` if the engine does not count commits. Without `runs` the backend
    starts no relay.
    """

    def __init__(
        self,
        family: Family,
        choices: Choices,
        tool: IptablesTool | None,
        sight: Generations | None = None,
        *,
        runs: bool = True,
    ) -> None:
        self.family, self._choices, self._tool = family, choices, tool
        self._sight, self._runs = sight, runs
        settings = RelaySettings(choices.ports, choices.udp_timeout)
        self._remote = Remote(relay_name(family), settings, starts=runs)
        self._seen: int | None = None
        self._node = NodePlan(family)
        self._left: dict[Key, Value] | None = None
        self._looked = time.monotonic()
        self._told: dict[str, str] = {}

    @property
    def variant(self) -> str:
        """The kernel's engine that holds the rules: `nft` or `legacy`; "" without rules."""
        return self._tool.variant.value if self._tool is not None else ""

    def close(self) -> None:
        """Close the connection; the relay and the rules stay."""
        self._remote.close()
        if self._sight is not None:
            self._sight.close()

    def render_node(self, node: NodePlan) -> Mapping[Key, Value]:
        """Render the constant objects. Later calls of `render` use this node."""
        self._node = node
        return build_node_objects(node, self._choices)

    def render(self, plan: ServicePlan) -> Rendered[Key, Value]:
        return render_service(self._node, self._choices, plan)

    def describe(self, key: Key) -> str:
        return describe_key(self.family, key)

    def find_shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        return tuple(find_shortcomings(self._node, self._choices, plan))

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        """Read the counters of the relay, over a separate connection, and of the rules; see `Mode`."""
        saved = self._tool.save(FILTER, counted=True) if self._tool is not None else ""
        return count_by_service(tuple(plans), ask_counts(relay_name(self.family)), saved, endpoints=endpoints)

    def changed(self) -> bool:
        """Report whether the rules may have changed since vipwire's last read or write, or the relay ended."""
        if self._left is None or not self._remote.is_alive():
            return True
        if self._sight is not None:
            return self._sight.observe() != self._seen
        return self._tool is not None and self._read_objects() != self._left

    def observe(self) -> dict[Key, Value]:
        self._left = None
        self._seen = self._sight.observe() if self._sight is not None else None
        found = self._read_objects()
        self._left = dict(found)
        self._told = {front: at for front, at in self._told.items() if Front(front) in found}
        self._log_places(_select_listeners(found))
        return found

    def commit(self, delta: Delta[Key, Value]) -> SentBytes:
        """Apply a difference; return the bytes of rules. Raise CommitError if the kernel or the relay refuses."""
        coming, before, going = _split_listeners(delta)
        was = {front: self._remote.ports.get(front, []) for front in (*before, *going)}
        left, self._left = self._left, None
        instead = [key for key, listener in going.items() if any(place.port for place in listener.binds)]
        before |= {key: going[key] for key in instead}
        self._remote.put(coming, before, instead)
        try:
            ports = self._remote.ports
            text = write_script(delta, _select_first_ports(ChainMap(was, ports)), _select_first_ports(ports))
            self._restore_rules(text)
        except CommitError:
            self._remote.undo([*coming, *instead], before)
            raise
        self._remote.remove(going.keys() - set(instead))
        if left is not None:
            delta.apply_to(left)
        self._left = left
        for front in going:
            self._told.pop(front, None)
        self._log_places(coming)
        return len(text)

    def relayed(self, plans: Iterable[ServicePlan]) -> frozenset[tuple[Address, int]]:
        """Return the addresses and ports of this node that answer UDP flows to these plans' frontends."""
        ways = (each for plan in plans for each in list_entrances(plan) if each.frontend.key.protocol is Protocol.UDP)
        fronts = (each.name_front(here=here) for each in ways for here in (False, True))
        return frozenset(place for front in fronts for place in self._list_bound_places(front))

    def housekeeping_due(self) -> float | None:
        """Return the seconds until vipwire asks the relay for news; None if it starts no relay."""
        if not self._runs or self._left is None:
            return None
        return max(0.0, self._looked + _LOOK_SECONDS - time.monotonic())

    def housekeep(self) -> None:
        """Handle the relay's messages. Raise OSError if the relay has ended."""
        self._looked = time.monotonic()
        for text, times in self._remote.read_notes():
            _LOG.warning("%s", text, extra={"fields": {"ip_family": self.family.value, "times": times}})

    def delete(self) -> bool:
        """Remove the rules of both variants and retire the relay; report whether any existed.

        In settings without rules, leave rules alone, because their removal needs a privilege that this process may
        lack. The relay ends with its last connection.
        """
        found = False
        tools = find_tools_with_tables(self.family, PURPOSE, limit=LIMIT_SECONDS)
        for tool in tools if self._choices.bind is Bind.RULES else ():
            if text := write_removal(tool.save(*TABLES)):
                tool.restore(text)
                found = True
        return self._remote.retire() or found

    def _read_objects(self) -> dict[Key, Value]:
        listeners = self._remote.read_listeners()
        found: dict[Key, Value] = {Front(key): listener for key, listener in listeners.items()}
        if self._tool is not None:
            found.update(read_rules(self._tool.save(*TABLES), self._remote.map_fronts(listeners)))
        return found

    def _restore_rules(self, text: str) -> None:
        if not text or self._tool is None:
            return
        before = self._sight.observe() if self._sight is not None else None
        self._tool.restore(text)
        if self._sight is not None:
            # `_seen` stays: the next check must see commits of other programs before or during this one.
            self._sight.observe_after(before, text.count("\nCOMMIT\n"))

    def listens_at(self, frontend: Frontend) -> tuple[str, ...]:
        """Return the addresses at which clients reach a frontend without rules, as last seen; empty with rules."""
        if self._choices.bind is Bind.RULES:
            return ()
        return tuple(format_endpoint(*place) for place in self._list_bound_places(Entrance(frontend).name_front()))

    def port_of(self, front: str) -> int:
        """Return the port of a front for rules, as last seen; 0 if it does not exist."""
        return _select_first_ports(self._remote.ports)(front)

    def _list_bound_places(self, front: str) -> Iterator[tuple[Address, int]]:
        listener = (self._left or {}).get(Front(front))
        binds = listener.binds if isinstance(listener, Listener) else ()
        for place, port in zip(binds, self._remote.ports.get(front, ()), strict=False):
            yield Address(place.address), port

    def _log_places(self, listeners: Mapping[str, Listener]) -> None:
        """Log the ports that listeners chose themselves, once for each port."""
        if self._choices.bind is Bind.RULES or not self._runs:
            return
        for front, listener in listeners.items():
            if all(place.port for place in listener.binds):
                continue
            at = ",".join(format_endpoint(*place) for place in self._list_bound_places(front))
            if at and self._told.get(front) != at:
                self._told[front] = at
                _LOG.info("listening", extra={"fields": {"frontend": front, "at": at}})


def _split_listeners(
    delta: Delta[Key, Value],
) -> tuple[dict[str, Listener], dict[str, Listener], dict[str, Listener]]:
    """Return the fronts of a difference: the new state, the old state of changed ones, and the deleted ones."""
    before = {key: old for key, (old, _) in delta.changed.items()}
    return _select_listeners(delta.written), _select_listeners(before), _select_listeners(delta.removed)


def _select_listeners(objects: Mapping[Key, Value]) -> dict[str, Listener]:
    return {
        key.front: value for key, value in objects.items() if isinstance(key, Front) and isinstance(value, Listener)
    }


def _select_first_ports(ports: Mapping[str, list[int]]) -> Ports:
    """Return the port of a front's first socket, to which rules lead."""
    return lambda front: next(iter(ports.get(front, ())), 0)


def open_commit_counter(tools: Iterable[IptablesTool | None]) -> Generations | None:
    """Return the commit counter of nf_tables; None if some rules are in the legacy engine."""
    tools = tuple(tools)
    return Generations() if tools and all(tool and tool.variant is Variant.NFT for tool in tools) else None
