"""The store's requests to etcd: transactions, pages of a state, and leases for objects with a lifetime.

A transaction compares the mod revisions of all keys that the caller read, and also writes the key `changed`, so that
the revision of `changed` is the newest one: `read_newest_revision` reads that key through the leader. When the owner
of the prefix is known, both also compare the key `cluster`, so that etcd refuses a write into another owner's prefix.

A try with an unknown outcome may be carried out much later, by a member that was suspended or partitioned. A change
or a deletion then fails: the revision that it compares never comes back. But an object to be created may have been
created by the next try and deleted since, and would come back. So such a transaction also compares the key `tries`,
and before the transaction is repeated that key is written: earlier tries fail then.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vipwire_up.store.etcd.client import PATIENCE, Client, EtcdReply, LeaseGoneError, UnansweredCallError
from vipwire_up.store.etcd.layout import Layout
from vipwire_up.store.etcd.messages import EQUAL, MESSAGES, MOD_REVISION, VALUE
from vipwire_up.store.record import (
    Check,
    ConflictError,
    ForeignStoreError,
    Key,
    Step,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnknownOutcomeError,
    Write,
)
from vipwire_up.store.visible import set_error, set_result

_PAGE: Final = 500
_MOST_PER_LEASE: Final = 1000
_AT_ONCE: Final = 64
_Range = MESSAGES["RangeRequest"]
_Op = MESSAGES["RequestOp"]


@dataclass(slots=True)
class _Lease:
    number: int
    until: float
    used: int = 0


class Transactions:
    """Sends the requests of one cluster."""

    def __init__(self, client: Client, layout: Layout) -> None:
        self._client, self._layout = client, layout
        self._leases: dict[int, _Lease] = {}
        self._granting = asyncio.Lock()
        self._guard, self._guarding = 0, asyncio.Lock()
        self.owner = b""
        """The owner of the prefix; b"" until it is known."""

    async def read_newest_revision(self) -> tuple[int, int]:
        """Return the revision of the newest transaction, and etcd's own, as a majority has them."""
        request = _Range(key=self._layout.changed, range_end=self._layout.cluster + b"\0")  # `changed` and `cluster`
        answer = (await self._client.call("KV/Range", request)).message
        found = {each.key: each for each in answer.kvs}
        self._check_owner([found[key] for key in (self._layout.cluster,) if key in found])
        changed = found.get(self._layout.changed)
        return (changed.mod_revision if changed else 0), answer.header.revision

    async def read_state(self, revision: int) -> list[tuple[Key, int, bytes]]:
        """Return the objects at a revision: their keys, own revisions and bytes. Raise CompactedError."""
        first, last = self._layout.objects, self._layout.objects[:-1] + b"0"
        found = list[tuple[Key, int, bytes]]()
        while True:
            request = _Range(key=first, range_end=last, limit=_PAGE, revision=revision)
            page = (await self._client.call("KV/Range", request)).message
            for each in page.kvs:
                if (key := self._layout.parse_key(each.key)) is not None:
                    found.append((key, each.mod_revision, each.value))
            if not page.more:
                return found
            first = page.kvs[-1].key + b"\0"

    async def commit(self, steps: Sequence[Step], values: Sequence[bytes]) -> int:
        """Commit a transaction and return its revision; `values` has the encoded object of each write in `steps`.

        Raise ConflictError or StoreError.
        """
        mark = secrets.token_hex(8).encode()
        try:
            answer = await self._send_until_answered(steps, values, mark)
        except LeaseGoneError:
            self._leases.clear()
            answer = await self._send_until_answered(steps, values, mark)
        except StoreFullError:
            if not all(isinstance(step, Check) or step.deletes for step in steps):
                raise
            answer = await self._send_until_answered(steps, values, b"")  # deletions free space
        if answer.message.succeeded:
            return int(answer.message.header.revision)
        return self._find_earlier_commit(answer, steps, values, mark)

    async def _send_until_answered(self, steps: Sequence[Step], values: Sequence[bytes], mark: bytes) -> EtcdReply:
        """Repeat a transaction until it is answered. Before a creation is repeated, earlier tries must fail."""
        if all(step.expected for step in steps):
            return await self._client.call("KV/Txn", await self._build_request(steps, values, mark))
        loop, uncertain = asyncio.get_running_loop(), 0
        end = loop.time() + PATIENCE
        while True:
            try:
                patience = max(end - loop.time(), 0.1)
                guard = await self._replace_guard(uncertain, patience)
                request = await self._build_request(steps, values, mark, guard)
                answer = await self._client.call("KV/Txn", request, patience=patience, once=True)
            except UnansweredCallError as error:
                uncertain = guard
                if loop.time() >= end:
                    raise UnknownOutcomeError(f"etcd: {error}") from error
                continue
            except StoreUnavailableError as error:
                raise (UnknownOutcomeError(str(error)) if uncertain else error) from error
            found = _read_keys(answer.message)[-2] if not answer.message.succeeded else ()
            if answer.message.succeeded or (found and found[0].mod_revision == guard):
                return EtcdReply(answer.message, uncertain > 0)
            self._guard = found[0].mod_revision if found else 0  # another process has written it

    async def _replace_guard(self, uncertain: int, patience: float) -> int:
        """Return the revision of the key `tries`; write it if it is missing or unchanged since an uncertain try."""
        async with self._guarding:
            if self._guard <= uncertain:
                found = await self._read_guard(patience)
                if not found or found[0].mod_revision <= uncertain:
                    put = _Op(request_put=MESSAGES["PutRequest"](key=self._layout.tries))
                    shown = _Op(request_range=_Range(key=self._layout.cluster))
                    request = MESSAGES["TxnRequest"](
                        compare=self._compare_own_prefix(), success=[put], failure=[shown]
                    )
                    answer = (await self._client.call("KV/Txn", request, patience=patience)).message
                    if not answer.succeeded:
                        self._check_owner(_read_keys(answer)[-1])
                    found = await self._read_guard(patience)
                self._guard = int(found[0].mod_revision)
            return self._guard

    async def _read_guard(self, patience: float) -> Sequence[Any]:
        request = _Range(key=self._layout.tries)
        found: Sequence[Any] = (await self._client.call("KV/Range", request, patience=patience)).message.kvs
        return found

    def _find_earlier_commit(
        self, answer: EtcdReply, steps: Sequence[Step], values: Sequence[bytes], mark: bytes
    ) -> int:
        """Return the revision of a transaction that an earlier try has made, else raise."""
        *there, changed, _, cluster = _read_keys(answer.message)
        if not answer.repeated:
            self._check_owner(cluster)
        if changed and changed[0].value == mark:
            return int(changed[0].mod_revision)
        if answer.repeated and (revision := _committed_revision(answer.message, steps, values, there)):
            return revision
        if answer.repeated:
            raise UnknownOutcomeError("etcd: the connection broke, and the object has changed since")
        seen = changed[0].mod_revision if changed else 0
        for step, found in zip(steps, there, strict=False):
            actual = found[0].mod_revision if found else 0
            if actual != step.expected:
                raise ConflictError(step.key, step.expected, actual, max(seen, actual))
        raise ConflictError(steps[-1].key, steps[-1].expected, 0, seen)

    async def _build_request(
        self, steps: Sequence[Step], values: Sequence[bytes], mark: bytes, guard: int = 0
    ) -> Any:
        places = [self._layout.key_bytes(step.key) for step in steps]
        expected = [*zip(places, (step.expected for step in steps), strict=True)]
        compare = [
            MESSAGES["Compare"](result=EQUAL, target=MOD_REVISION, key=place, mod_revision=revision)
            for place, revision in (*expected, *([(self._layout.tries, guard)] if guard else ()))
        ]
        compare += self._compare_own_prefix()
        success, left = [], iter(values)
        for place, step in zip(places, steps, strict=True):
            if isinstance(step, Write):
                success.append(await self._build_operation(place, step, next(left)))
        if mark:
            success.append(_Op(request_put=MESSAGES["PutRequest"](key=self._layout.changed, value=mark)))
        notes = self._layout.changed, self._layout.tries, self._layout.cluster
        shown = [_Op(request_range=_Range(key=place)) for place in (*places, *notes)]
        return MESSAGES["TxnRequest"](compare=compare, success=success, failure=shown)

    def _compare_own_prefix(self) -> list[Any]:
        """Return the comparisons that restrict a transaction to this cluster's prefix."""
        if not self.owner:
            return []
        return [MESSAGES["Compare"](result=EQUAL, target=VALUE, key=self._layout.cluster, value=self.owner)]

    def _check_owner(self, found: Sequence[Any]) -> None:
        """Raise ForeignStoreError if the found value of the key `cluster` is not this cluster's."""
        if self.owner and not found:
            raise ForeignStoreError(f"etcd's prefix {self._layout.prefix} is empty, or etcd is a different cluster")
        if self.owner and found[0].value != self.owner:
            raise ForeignStoreError(f"etcd's prefix {self._layout.prefix} now belongs to another cluster")

    async def _build_operation(self, place: bytes, step: Write, value: bytes) -> Any:
        if step.deletes:
            return _Op(request_delete_range=MESSAGES["DeleteRangeRequest"](key=place))
        lease = await self._lease_of(step.lifetime) if step.lifetime else 0
        return _Op(request_put=MESSAGES["PutRequest"](key=place, value=value, lease=lease))

    async def _lease_of(self, lifetime: int) -> int:
        """Return a lease of at least a lifetime: objects of about the same time share one."""
        loop, shared = asyncio.get_running_loop(), min(60, max(lifetime // 60, 1))
        async with self._granting:
            held = self._leases.get(lifetime)
            if held is None or held.until < loop.time() or held.used >= _MOST_PER_LEASE:
                request = MESSAGES["LeaseGrantRequest"](TTL=lifetime + shared, ID=0)
                until = loop.time() + shared
                granted = (await self._client.call("Lease/LeaseGrant", request)).message
                held = self._leases[lifetime] = _Lease(granted.ID, until)
            held.used += 1
            return held.number

    async def compact(self, revision: int, known: int) -> tuple[bool, int]:
        """Compact etcd up to a revision, unless another process has compacted since.

        The key `compacted` tells: each compaction writes it, and `known` is its last known revision. Return whether
        this call compacted, and the key's revision now.
        """
        key = self._layout.compacted
        note = MESSAGES["PutRequest"](key=key, value=str(revision).encode())
        compare = MESSAGES["Compare"](result=EQUAL, target=MOD_REVISION, key=key, mod_revision=known)
        shown = [_Op(request_range=_Range(key=each)) for each in (key, self._layout.cluster)]
        request = MESSAGES["TxnRequest"](
            compare=[compare, *self._compare_own_prefix()], success=[_Op(request_put=note)], failure=shown
        )
        answer = (await self._client.call("KV/Txn", request)).message
        if not answer.succeeded:
            found, cluster = _read_keys(answer)
            self._check_owner(cluster)
            return False, found[0].mod_revision if found else 0
        await self._client.call("KV/Compact", MESSAGES["CompactionRequest"](revision=revision))
        return True, answer.header.revision

    async def continue_after(self, revision: int) -> None:
        """Write until etcd's revision is beyond `revision`: each number is for one state only."""
        _, reached = await self.read_newest_revision()

        async def work(count: int) -> None:
            for _ in range(count):
                await self.put_value(self._layout.changed, b"")

        each, rest = divmod(max(revision - reached + 1, 0), _AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for number in range(_AT_ONCE):
                tasks.create_task(work(each + (number < rest)))

    async def void_history(self) -> None:
        """Tell all servers that revisions before this write are void, and compact etcd up to there."""
        revision = int((await self.put_value(self._layout.restored, b"")).header.revision)
        await self._client.call("KV/Compact", MESSAGES["CompactionRequest"](revision=revision))

    async def put_value(self, key: bytes, value: bytes) -> Any:
        return (await self._client.call("KV/Put", MESSAGES["PutRequest"](key=key, value=value))).message

    async def claim_prefix(self, owner: bytes) -> bytes:
        """Make a free prefix `owner`'s; return its owner. `owner` then reads and writes while the prefix has it."""
        key = self._layout.cluster
        note = MESSAGES["PutRequest"](key=key, value=owner)
        compare = MESSAGES["Compare"](result=EQUAL, target=MOD_REVISION, key=key, mod_revision=0)
        shown = _Op(request_range=_Range(key=key))
        request = MESSAGES["TxnRequest"](compare=[compare], success=[_Op(request_put=note)], failure=[shown])
        answer = (await self._client.call("KV/Txn", request)).message
        found = owner if answer.succeeded else bytes(answer.responses[0].response_range.kvs[0].value)
        if found == owner:
            self.owner = owner
        return found

    async def read_owner(self) -> bytes:
        found = (await self._client.call("KV/Range", _Range(key=self._layout.cluster))).message.kvs
        return bytes(found[0].value) if found else b""


def _read_keys(message: Any) -> list[Any]:
    """Return the keys that a failed transaction read, in their order."""
    return [each.response_range.kvs for each in message.responses]


def _committed_revision(answer: Any, steps: Sequence[Step], values: Sequence[bytes], there: Sequence[Any]) -> int:
    """Return a revision at which all writes of a transaction are in place, else 0.

    Other processes may have written other keys since. A key to be deleted that is missing counts as deleted.
    """
    left = iter(values)
    written = [
        (step, next(left), found) for step, found in zip(steps, there, strict=False) if isinstance(step, Write)
    ]
    if any(found for step, _, found in written if step.deletes):
        return 0
    puts = [(step, value, found) for step, value, found in written if not step.deletes]
    if not all(found and found[0].value == value for _, value, found in puts):
        return 0
    revisions = {int(found[0].mod_revision) for _, _, found in puts} or {int(answer.header.revision)}
    fresh = all(found[0].mod_revision > step.expected for step, _, found in puts)
    return revisions.pop() if len(revisions) == 1 and fresh else 0


_SENDERS: Final = 8
_MOST_STEPS: Final = 100  # etcd's --max-txn-ops is 128
_MOST_BYTES: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class _Waiting:
    steps: tuple[Step, ...]
    values: tuple[bytes, ...]
    done: "asyncio.Future[int]"


class Gathering:
    """Sends concurrent transactions as one: a gRPC call costs more than its content.

    No two of them write the same key, so none depends on another. If etcd refuses them together, each is sent by
    itself and gets its own answer. `spawn` runs a coroutine beside all others.
    """

    def __init__(self, transactions: Transactions, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._transactions, self._spawn = transactions, spawn
        self._waiting: deque[_Waiting] = deque()
        self._senders = 0

    async def commit(self, steps: Sequence[Step], values: Sequence[bytes]) -> int:
        waiting = _Waiting(tuple(steps), tuple(values), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._senders < _SENDERS:
            self._senders += 1
            self._spawn(self._send_batches())
        return await waiting.done

    async def _send_batches(self) -> None:
        try:
            while self._waiting:
                await self._commit_together(self._take_batch())
        finally:
            self._senders -= 1

    def _take_batch(self) -> list[_Waiting]:
        batch, steps, size = [self._waiting.popleft()], 0, 0
        while self._waiting:
            steps, size = steps + len(batch[-1].steps), size + sum(map(len, batch[-1].values))
            following = self._waiting[0]
            if steps + len(following.steps) > _MOST_STEPS or size + sum(map(len, following.values)) > _MOST_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _commit_together(self, batch: Sequence[_Waiting]) -> None:
        if len(batch) == 1:
            await self._commit_alone(batch[0])
            return
        steps = [step for each in batch for step in each.steps]
        values = [value for each in batch for value in each.values]
        try:
            revision = await self._transactions.commit(steps, values)
        except (StoreUnavailableError, UnknownOutcomeError) as error:
            for each in batch:
                set_error(each.done, error)
        except (ConflictError, StoreError):
            await asyncio.gather(*map(self._commit_alone, batch))
        else:
            for each in batch:
                set_result(each.done, revision)

    async def _commit_alone(self, waiting: _Waiting) -> None:
        try:
            set_result(waiting.done, await self._transactions.commit(waiting.steps, waiting.values))
        except Exception as error:  # noqa: BLE001  # the waiting callers get the error
            set_error(waiting.done, error)
