"""nftables mode's backend: reads the table and writes transactions. One instance serves one family.

It compares the kernel's rules and declarations with compiled text, attribute by attribute, so it finds a change that
`nft list` does not show. It shows a rule that equals none of its texts by its expressions. `changed` costs one small
request: see `generations`.
"""

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from vipwire.config.sections import COUNTER_FIELDS, CounterLevel
from vipwire.errors import CommitError
from vipwire.linux.netlink.message import Acknowledgement
from vipwire.linux.netlink.nftables import decode, encode, flowtables
from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.modes.nftables.language import SetSpec, compile_set, describe_expressions, is_same_rule, is_same_set
from vipwire.modes.nftables.mode import LACKS
from vipwire.modes.nftables.probe import LACKING, describe_advice
from vipwire.modes.nftables.table import fastpath, text
from vipwire.modes.nftables.table.blocks import Planned, count_elements, split_blocks
from vipwire.modes.nftables.table.counts import COUNTING, count_by_service, counted_by
from vipwire.modes.nftables.table.names import (
    CHAIN,
    FLOWTABLE,
    SET,
    TABLE,
    Chain,
    FlowtableSpec,
    Hook,
    Object,
    ObjectKey,
    is_memory,
)
from vipwire.modes.nftables.table.pools import build_affinity_set, find_written_chain
from vipwire.modes.nftables.table.read import (
    LARGE,
    NOTHING_AHEAD,
    WORTHWHILE,
    Listings,
    has_table,
    read_ahead,
    read_counted,
    read_elements,
)
from vipwire.modes.nftables.table.render import render_service
from vipwire.modes.nftables.table.script import DescribedOperation, build_operations, replace_sets
from vipwire.modes.nftables.table.sizes import SIZED, SetSizes, refers_to
from vipwire.modes.nftables.table.skeleton import HOOKED, build_node_objects, compile_cached
from vipwire.plan.annotations import NOTHING, find_ineffective
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.counts import Counts
from vipwire.reconcile.delta import Delta, SentBytes

if TYPE_CHECKING:
    from vipwire.linux.netlink.nftables.listener import CommitListener
    from vipwire.modes.nftables.flowtable import FlowtableDevices

T = TypeVar("T", decode.ListedChain, decode.ListedNftRule, decode.SetDeclaration, flowtables.Flowtable)

_HOOK_NAMES = {number: name for name, number in encode.HOOKS.items()}
OFFLOAD_FIELD = "nftables.offloadPacketThreshold"
PATIENCE = 10.0
"""Seconds for which vipwire retries a read. Any commit in the network namespace interrupts a read."""


class NftablesBackend:
    """The table `vipwire` of one family, in the network namespace of its creation.

    Both families share `generations`, so that one's commit is not a foreign commit to the other. `offload_after`:
    after how many packets the flowtable takes a connection (0: never). A map of at least `large` elements is read by
    its keys; a set of at least `worthwhile` is listed ahead. The backend closes `sock`; without one it opens its own.
    """

    prompt = True
    hears_all = True

    def __init__(
        self,
        family: Family,
        generations: Generations | None = None,
        counters: CounterLevel = CounterLevel.CONNECTIONS,
        large: int = LARGE,
        sock: NetlinkSocket | None = None,
        offload_after: int = 0,
    ) -> None:
        self.family, self.large = family, large
        self._counters, self._offload_after = counters, offload_after
        self._socket = sock or NetlinkSocket(NETLINK_NETFILTER)
        self._generations = generations or Generations()
        self._foreign = -1
        self._recreate = False
        self._sizes = SetSizes()
        self._known: dict[ObjectKey, Object] = dict(HOOKED)
        self.worthwhile = WORTHWHILE
        self._ahead: tuple[int, Listings] = (-1, NOTHING_AHEAD)
        self._devices = self._flowtable_devices() if offload_after else None

    def close(self) -> None:
        """Close the sockets; the table stays."""
        self._socket.close()
        self._generations.close()
        if self._devices is not None:
            self._devices.close()

    def _flowtable_devices(self) -> "FlowtableDevices":
        from vipwire.modes.nftables.flowtable import FlowtableDevices  # noqa: PLC0415  # few offload

        return FlowtableDevices(self.family, self._socket, self._generations)

    def render_node(self, node: NodePlan) -> Mapping[ObjectKey, Object]:
        objects = build_node_objects(node, self._counters, self._offload_after)
        self._known.update(objects)
        return objects

    def render(self, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
        return render_service(self.family, plan)

    def describe(self, key: ObjectKey) -> str:
        return text.describe_key(self.family, key)

    def changed(self) -> bool:
        """Report whether another program has committed since vipwire's last commit or observation."""
        return self._generations.observe() != self._foreign

    def listen(self) -> "CommitListener":
        """Hear of other programs' commits to the table; see `Listening`."""
        return self._generations.listen([TABLE], self._socket.port)

    def read_ahead(self) -> None:
        """List the large sets, if the table exists; see `ReadsAhead`."""
        before = self._generations.observe()
        if has_table(self._socket, self.family):
            sets = self._dump_objects(MessageType.GETSET, decode.decode_set_declaration)
            wanted = [each for each in sets if each.name not in COUNTING and not is_memory(each.name)]
            self._ahead = before, read_ahead(self._socket, self.family, wanted, range(self.worthwhile, self.large))

    def observe(self, planned: Planned | None = None) -> dict[ObjectKey, Object]:
        """Read the table; empty if it does not exist or has another layout. With `planned`, slots are blocks."""
        seen, ahead = self._ahead
        self._ahead = -1, NOTHING_AHEAD
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            before = self._generations.observe()
            try:
                objects = self._read_objects(ahead if seen == before else NOTHING_AHEAD, planned)
            except DumpInterruptedError:
                continue
            except NetlinkError as error:
                if error.errno != errno.ENOENT:
                    raise
                objects = {}  # the table disappeared during the read
            if self._generations.observe() == before:
                self._foreign = before
                self._record_flowtable(there=fastpath.KEY in objects)
                return objects
        raise CommitError("the nftables ruleset changes faster than vipwire can read", errno=errno.EBUSY)

    def commit(self, delta: Delta[ObjectKey, Object]) -> SentBytes:
        """Send one transaction; return its size in bytes."""
        added = count_elements(delta.added)
        made = self._sizes.choose_sizes(delta.added, added)
        planned = build_operations(self.family, delta, recreate=self._recreate, sizes=made)
        changed = {key: new for key, (_, new) in delta.changed.items()}
        count = added.total() + sum(count_elements(each).total() for each in (changed, delta.removed))
        size = self._send_transaction(planned, lambda: text.write_script(self.family, delta), count)
        self._recreate = False
        self._sizes.record_sizes(made)
        self._sizes.record_elements(delta, added)
        if fastpath.KEY in delta.added or fastpath.KEY in delta.removed:
            self._record_flowtable(there=fastpath.KEY in delta.added)
        return size

    def lacks_room(self, delta: Delta[ObjectKey, Object]) -> bool:
        """Report whether a set is too small for a transaction; see `Enlarging`."""
        return bool(self._sizes.find_too_small(delta))

    def enlarge(self, delta: Delta[ObjectKey, Object], held: Iterable[Mapping[ObjectKey, Object]]) -> SentBytes:
        """Replace the sets that lack room by larger ones with the same elements; see `Enlarging`.

        In one transaction: each packet finds all elements, in the old set or in the new one.
        """
        sizes = self._sizes.find_too_small(delta)
        sets = [spec for spec in self._known.values() if isinstance(spec, SetSpec) and spec.name in sizes]
        elements: dict[ObjectKey, Object] = {}
        chains: dict[str, Chain] = {}
        for key, value in split_blocks(item for objects in held for item in objects.items()):
            if key[0] in sizes:
                elements[key] = value
            elif key[0] == CHAIN and (chain := self._read_chain(key[1].decode())) and refers_to(chain, sizes):
                chains[key[1].decode()] = chain
        larger = [replace(spec, size=sizes[spec.name]) for spec in sets]
        planned = replace_sets(self.family, larger, elements, chains)
        size = self._send_transaction(planned, lambda: [step.words for step in planned], len(elements))
        self._sizes.record_sizes(sizes)
        return size

    def _send_transaction(
        self, planned: list[DescribedOperation], script: Callable[[], Iterable[str]], count: int
    ) -> int:
        """Send one transaction of `count` objects; return its size in bytes.

        Raise CommitError, with `script`, if the kernel refuses.
        """
        with self._generations.pause_during_own_commit(count):
            return self._send_expecting(planned, script)

    def _send_expecting(self, planned: list[DescribedOperation], script: Callable[[], Iterable[str]]) -> SentBytes:
        operations = [step.operation for step in planned]
        expected = self._generations.expected
        first, size, refused = self._transact(operations, expected)
        if refused is not None and refused.errno == errno.ERESTART and expected is not None:
            expected = None
            self._generations.observe()  # takes note of other programs' commits
            first, size, refused = self._transact(operations, None)
        if refused is not None:
            raise self._explain_refusal(planned, first, refused, script)
        if expected is None:
            self._generations.count_own(1)
        else:
            self._generations.count_expected()
        return size

    def _transact(
        self, operations: list[encode.Operation], generation: int | None
    ) -> tuple[int, int, Acknowledgement | None]:
        """Send one transaction; return its first sequence number, its size in bytes, and the kernel's refusal."""
        first = self._socket.reserve_sequence_numbers(len(operations) + 2)
        batch = encode.encode_transaction(operations, first, generation)
        self._socket.drain()
        try:
            size = self._socket.send(*batch)
        except OSError as error:
            raise CommitError(f"the kernel refuses {sum(map(len, batch))} bytes of a transaction: {error}") from error
        answers = self._socket.read_acknowledgements(first + len(operations))
        return first, size, next((answer for answer in answers if answer.errno), None)

    def housekeeping_due(self) -> float | None:
        """Return the seconds until the flowtable's devices need a look; None without a flowtable."""
        return None if self._devices is None else self._devices.due()

    def housekeep(self) -> None:
        if self._devices is not None:
            self._devices.add_missing_devices()

    def _record_flowtable(self, *, there: bool) -> None:
        if self._devices is not None:
            self._devices.record_flowtable(there=there)

    def find_shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        """List the wishes of a Service that nftables mode cannot fulfil; see `Selective`."""
        return () if plan.wishes is NOTHING else tuple(find_ineffective(plan.name, plan.wishes, LACKS))

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        """Read the counting sets, over a separate socket."""
        if not self._counters:
            raise CommitError("counting is off (--counters=none)")
        return count_by_service(self.family, plans, read_counted(self.family, COUNTING), endpoints=endpoints)

    def adopt_settings(self, explicit: frozenset[str]) -> None:
        """Take the counter level and the offload threshold of the kernel's table; see `AdoptsSettings`."""
        if not explicit & COUNTER_FIELDS:
            chains = {chain.name for chain in self._dump_objects(MessageType.GETCHAIN, decode.decode_chain)}
            if "services" in chains:
                self._counters = counted_by(chains)
        if OFFLOAD_FIELD not in explicit:
            rules = self._dump_objects(MessageType.GETRULE, decode.decode_rule)
            entries = (rule.expressions for rule in rules if rule.chain.encode() == fastpath.ENTRY[1])
            self._offload_after = next((fastpath.read_threshold(self.family, each) for each in entries), 0)

    def delete(self) -> bool:
        """Delete the table; report whether it existed."""
        if not has_table(self._socket, self.family):
            return False
        delete_table(self._socket, self.family, TABLE)
        return True

    def _explain_refusal(
        self,
        planned: list[DescribedOperation],
        first: int,
        answer: Acknowledgement,
        script: Callable[[], Iterable[str]],
    ) -> CommitError:
        refused = encode.find_refused(planned, first, answer.sequence)
        what = refused.words if refused else "the transaction as a whole"
        lacking = describe_advice(what) if answer.errno in LACKING else ""
        return CommitError(
            "; ".join(
                filter(
                    None,
                    (f"table {text.format_table_name(self.family)}: {what}: {_describe_answer(answer)}", lacking),
                )
            ),
            transaction="\n".join(script()),
            errno=answer.errno,
        )

    def _read_objects(self, ahead: Listings, planned: Planned | None) -> dict[ObjectKey, Object]:
        self._recreate = False
        self._sizes = SetSizes()
        if not has_table(self._socket, self.family):
            return {}
        objects: dict[ObjectKey, Object] = dict(self._read_chains())
        for found in self._dump_objects(MessageType.GETFLOWTABLE, flowtables.decode_flowtable):
            objects[FLOWTABLE, found.name.encode()] = FlowtableSpec(found.priority, found.flags)
        declared = self._dump_objects(MessageType.GETSET, decode.decode_set_declaration)
        for item in declared:
            key = (SET, item.name.encode())
            ours = build_affinity_set(self.family, item.name) if is_memory(item.name) else self._known.get(key)
            if isinstance(ours, SetSpec) and not self._is_declared(ours, item):
                self._recreate = True
            objects[key] = ours if isinstance(ours, SetSpec) else SetSpec(item.name, ())
        if self._recreate or self._has_wrong_hook(objects):
            self._recreate = True
            return {}
        wanted = [item for item in declared if (SET, item.name.encode()) in self._known and item.name not in COUNTING]
        objects.update(read_elements(self._socket, self.family, wanted, self.large, ahead, planned))
        self._sizes.record_observed({item.name: item.size for item in declared if item.name in SIZED}, objects)
        return objects

    def _is_declared(self, ours: SetSpec, found: decode.SetDeclaration) -> bool:
        """Report whether the kernel has this set, with any size if it is a hash that vipwire enlarges."""
        spec = replace(ours, size=found.size) if ours.name in SIZED else ours
        return is_same_set(compile_set(spec, self.family), found.attributes)

    def _dump_objects(self, kind: MessageType, read: Callable[[memoryview], T]) -> list[T]:
        """Return all chains, rules or sets of the table: the kernel does not filter every kind by table."""
        request = encode.list_objects(self.family, TABLE)
        found = [read(payload) for payload in self._socket.dump(kind, request)]
        return [item for item in found if item.table == TABLE]

    def _has_wrong_hook(self, objects: Mapping[ObjectKey, Object]) -> bool:
        """Report whether vipwire must write the whole table anew.

        vipwire must if the kernel's flowtable is not the wanted one, or if a chain has a hook where the wanted chain
        has none, or vice versa. A base chain with another hook is replaced alone. A chain without a hook cannot be:
        other programs' rules may refer to it.
        """
        for key, ours in self._known.items():
            found = objects.get(key)
            if isinstance(ours, Chain) and isinstance(found, Chain) and (ours.hook is None) != (found.hook is None):
                return True
            if isinstance(ours, FlowtableSpec) and isinstance(found, FlowtableSpec) and ours != found:
                return True
        return False

    def _read_chains(self) -> Iterator[tuple[ObjectKey, Chain]]:
        rules: dict[str, list[bytes]] = {}
        for rule in self._dump_objects(MessageType.GETRULE, decode.decode_rule):
            rules.setdefault(rule.chain, []).append(rule.expressions)
        for chain in self._dump_objects(MessageType.GETCHAIN, decode.decode_chain):
            key = (CHAIN, chain.name.encode())
            yield key, Chain(self._recognise_rules(key, rules.get(chain.name, [])), _convert_hook(chain))

    def _read_chain(self, name: str) -> Chain | None:
        """Return the chain that vipwire writes under this name."""
        known = self._known.get((CHAIN, name.encode())) or find_written_chain(self.family, name)
        return known if isinstance(known, Chain) else None

    def _recognise_rules(self, key: ObjectKey, found: Iterable[bytes]) -> tuple[str, ...]:
        """Replace the kernel's rules by the equal texts of vipwire."""
        known = self._read_chain(key[1].decode())
        ours = known.rules if known else ()

        def text(place: int, expressions: bytes) -> str:
            likely = ours[place : place + 1]
            equal = (
                rule for rule in (*likely, *ours) if is_same_rule(compile_cached(rule, self.family), expressions)
            )
            return next(equal, f"# {describe_expressions(expressions)}")

        return tuple(text(place, expressions) for place, expressions in enumerate(found))


def delete_table(sock: NetlinkSocket, family: Family, name: str) -> None:
    """Delete a table unless another program has deleted it. Raise CommitError if the kernel refuses."""
    first = sock.reserve_sequence_numbers(3)
    sock.send(*encode.encode_transaction([encode.delete_table(family, name)], first))
    for answer in sock.read_acknowledgements():
        if answer.errno not in (0, errno.ENOENT):
            raise CommitError(
                f"cannot delete table {text.format_table_name(family, name)}: {_describe_answer(answer)}",
                errno=answer.errno,
            )


def _convert_hook(chain: decode.ListedChain) -> Hook | None:
    hook = chain.hook
    return None if hook is None else Hook(hook.type, _HOOK_NAMES.get(hook.hook, str(hook.hook)), hook.priority)


def _describe_answer(answer: Acknowledgement) -> str:
    name = errno.errorcode.get(answer.errno, str(answer.errno))
    return f"{name} ({answer.text})" if answer.text else name
