"""Talks to etcd over gRPC: to one member at a time, and to the next if one does not answer.

Each call requires a leader, so that a partitioned member refuses at once without a change. When a leader dies, calls
to it get no answer, and members still accept calls for it until an election ends. So the first tries of a call are
shorter than an election, and later ones longer, for a slow etcd. A try without an answer may have been carried out:
`EtcdReply` says so. `errors.py` has the meanings of errors.

The client asks the member on this machine first, and twice, if there is one: it is the last that this machine can
reach. It ignores answers of members of another etcd cluster: see `identity.py`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes to stderr by itself; vipwire logs the errors
import grpc.aio

from vipwire.logging import log
from vipwire_up.store.etcd.errors import ErrorMeaning, find_tls_trouble, interpret_error
from vipwire_up.store.etcd.identity import MemberAnswer, choose_cluster
from vipwire_up.store.etcd.messages import MESSAGES
from vipwire_up.store.etcd.settings import EtcdServer, EtcdSettings
from vipwire_up.store.record import (
    ChangeTooLargeError,
    CompactedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnknownOutcomeError,
)

PATIENCE: Final = 5.0
"""Seconds that a call may take, over all members."""
_TRIES: Final = (0.4, 0.4, 0.4, 0.4, 0.4, 1.0)
_LAST_TRIES: Final = 2.0
"""Seconds that the first tries of a call may take, and each after them."""
_MEET_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.1
_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 6000),  # etcd allows one every 5 s
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_LEADER: Final = ("hasleader", "true")


@dataclass(frozen=True, slots=True)
class EtcdReply:
    """A message, and whether an earlier try may have been carried out, too."""

    message: Any
    repeated: bool


class LeaseGoneError(StoreError):
    """A lease has ended before it was used."""


class ForeignMemberError(StoreUnavailableError):
    """A member that has answered belongs to another etcd cluster."""


class UnansweredCallError(StoreError):
    """No member answered the only try of a call; etcd may have carried it out, or still may."""


class Client:
    """A client of an etcd cluster, whose ID is `cluster`, 0 for not known yet.

    `clock` returns the time, for errors about certificates.
    """

    def __init__(self, settings: EtcdSettings, clock: Callable[[], datetime], cluster: int = 0) -> None:
        self._settings, self._clock = settings, clock
        self._channels: dict[EtcdServer, tuple[object, grpc.aio.Channel]] = {}
        self._stale: list[grpc.aio.Channel] = []
        self._at, self._token = 0, ""
        self._failure = ""
        self.cluster = cluster
        """The ID of the etcd cluster; 0 until a member has answered."""
        self._seen = 0
        """The newest revision seen of that cluster. No answer of a majority is older."""
        self._strangers: dict[EtcdServer, str] = {}
        self._silent: dict[EtcdServer, str] = {}
        """The members that did not answer the last call to all; "" for one that had answered before that."""
        self.watched: EtcdServer | None = None
        """The member at which the last watch was opened."""

    @property
    def trouble(self) -> str:
        return self._failure or "; ".join(self._strangers.values())

    @property
    def note(self) -> str:
        """Which members are skipped, and why, while others answer; "" for none."""
        return "; ".join(filter(None, self._silent.values()))

    @property
    def server(self) -> EtcdServer:
        return self._settings.servers[self._at % len(self._settings.servers)]

    def switch_member(self, server: EtcdServer) -> None:
        """Switch to the next connected member, if calls still go to `server`."""
        if server != self.server:
            return
        servers = self._settings.servers
        following = [(self._at + more) % len(servers) for more in range(1, len(servers))]
        connected = [number for number in following if self._is_connected(servers[number])]
        self._at = next(iter(connected or ([0] if self._settings.near else following)), 0)

    def _is_connected(self, server: EtcdServer) -> bool:
        """Report whether there is a connection to a member; begin to connect if there is none."""
        try:
            return self._channel_to(server).get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
        except StoreError:  # a TLS file cannot be read
            return False

    async def switch_to_own_member(self) -> bool:
        """Switch to this machine's own member, if it answers as a part of a majority.

        Report success if the watch is at another member.
        """
        settings = self._settings
        home, nothing = settings.servers[0], MESSAGES["RangeRequest"](key=settings.prefix.encode())
        if not settings.near or home == self.server == self.watched:
            return False
        with contextlib.suppress(grpc.aio.AioRpcError, StoreError):
            await self._ask_once(home, "KV/Range", nothing, _TRIES[0])
            self._at = 0
        return home == self.server != self.watched

    async def call(self, method: str, request: Any, *, patience: float = PATIENCE, once: bool = False) -> EtcdReply:
        """Call a method, such as KV/Txn; raise StoreError or CompactedError without an answer.

        With `once`, never repeat a try that may have been carried out: raise UnansweredCallError instead.
        """
        loop, repeated = asyncio.get_running_loop(), False
        end, failed = loop.time() + patience, 0
        while True:
            server = self.server
            try:
                allowed = _TRIES[failed] if failed < len(_TRIES) else _LAST_TRIES
                seconds = min(allowed, max(end - loop.time(), 0.1))
                message = await self._ask_once(server, method, request, seconds)
            except ForeignMemberError as error:
                text = str(error)
            except grpc.aio.AioRpcError as error:
                verdict = self._interpret_error(error, repeated=repeated)
                repeated |= verdict is ErrorMeaning.UNCERTAIN
                text = str(error.details())
            else:
                self._failure = ""
                return EtcdReply(message, repeated)
            failed += 1
            if failed % 2 == 0 or not self._settings.near or server != self._settings.servers[0]:
                self.switch_member(server)
            if once and repeated:
                raise UnansweredCallError(text)
            if loop.time() + _PAUSE_SECONDS >= end:
                raise await self._unavailable_error(text, uncertain=repeated)
            if failed % len(self._settings.servers) == 0:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask_once(self, server: EtcdServer, method: str, request: Any, seconds: float) -> Any:
        seen = self._seen
        message = await self._call_member(server, method, request, seconds)
        self._check_header(server, message, seen + _transaction_succeeded(method, request, message))
        self._seen = max(self._seen, message.header.revision)
        return message

    async def _call_member(self, server: EtcdServer, method: str, request: Any, seconds: float) -> Any:
        metadata = await self._call_metadata(server)
        return await self._unary_method(server, method)(request, timeout=seconds, metadata=metadata)

    def _check_header(self, server: EtcdServer, message: Any, least: int = 0) -> None:
        """Raise ForeignMemberError for an answer of another etcd cluster, or at a revision before `least`.

        A cluster that grew from one member has the ID that this member alone has. So that member, restored alone from
        a backup, can be detected by its revision only.
        """
        found, revision = int(message.header.cluster_id), int(message.header.revision)
        self.cluster = self.cluster or found
        if found not in (self.cluster, 0):  # a gateway between vipwire and etcd may leave it out
            strange = f"is of another cluster: {found:x}, not {self.cluster:x}"
        elif revision < least:
            strange = "has a revision older than an earlier one: the member was restored alone, or recreated"
        else:
            if self._strangers.pop(server, None):
                log.info("a member of etcd belongs to this cluster again", server=server.target)
            return
        before, self._strangers[server] = self._strangers.get(server), f"etcd at {server.target} {strange}"
        if before != self._strangers[server]:
            log.error("not using a member of etcd", error=self._strangers[server])
        raise ForeignMemberError(self._strangers[server])

    async def choose_member(self, owner: bytes | None = None) -> bool:
        """Ask all members for their etcd cluster, and choose one; report whether the history is another.

        This is so for another cluster, or if most members are at a revision before one already seen: a backup was
        restored. Raise StoreUnavailableError if they disagree. `owner` is the prefix's owner; None skips that check.
        """
        servers, before, seen = self._settings.servers, self.cluster, self._seen
        asked = MESSAGES["RangeRequest"](key=f"{self._settings.prefix}/cluster".encode())

        failed = dict[EtcdServer, str]()

        async def ask(server: EtcdServer) -> Any:
            try:
                return await self._call_member(server, "KV/Range", asked, _MEET_SECONDS)
            except grpc.aio.AioRpcError as error:
                failed[server] = str(error.details())
            except StoreError as error:
                failed[server] = str(error)

        found = zip(servers, await asyncio.gather(*map(ask, servers)), strict=True)
        answers = {server: answer for server, answer in found if answer is not None and answer.header.cluster_id}
        said = [
            MemberAnswer(each.header.cluster_id, each.kvs[0].value if each.kvs else b"", each.header.revision)
            for each in answers.values()
        ]
        self.cluster, reached = choose_cluster(said, len(servers), before, owner, seen)
        is_another = before != 0 and (self.cluster != before or reached < seen)
        self._seen = reached if is_another else max(reached, self._seen)  # calls may have raised it meanwhile
        if answers and not self.cluster:
            named = ", ".join(f"{server.target}: {each.header.cluster_id:x}" for server, each in answers.items())
            raise StoreUnavailableError(
                f"the members of etcd belong to different clusters ({named}): --etcd-servers must name those of one"
            )
        for server, answer in answers.items():
            with contextlib.suppress(ForeignMemberError):
                self._check_header(server, answer, min(reached, seen))
        if answers:  # while no member answers, another message says so
            await self._log_silent_members(failed)
        return is_another

    async def _log_silent_members(self, failed: Mapping[EtcdServer, str]) -> None:
        """Log each member that is skipped from now on, and each that answers again.

        A member with a refused certificate is logged at once, others when they are silent for the second time.
        """
        before, self._silent = self._silent, {}
        for server, text in failed.items():
            tls = await asyncio.to_thread(find_tls_trouble, server, self._settings, self._clock())
            known, why = tls or server in before, tls or text
            self._silent[server] = f"skipping etcd at {server.target}: {why}" if known else ""
            if known and not before.get(server):
                log.warning("a member of etcd does not answer; using the others", server=server.target, error=why)
        for server in before.keys() - self._silent.keys():
            if before[server]:
                log.info("a member of etcd answers again", server=server.target)

    def _interpret_error(self, error: grpc.aio.AioRpcError, *, repeated: bool = False) -> ErrorMeaning:
        """Judge an error; raise it if all members would send it. `repeated`: an earlier try may have succeeded."""
        text = str(error.details())
        verdict = interpret_error(error.code().name, text)
        if verdict is ErrorMeaning.LOGIN:
            self._token = ""
        if verdict is ErrorMeaning.COMPACTED:
            raise CompactedError(0, 0) from error
        raised: dict[ErrorMeaning, type[StoreError]] = {
            ErrorMeaning.FULL: StoreFullError,
            ErrorMeaning.LARGE: ChangeTooLargeError,
            ErrorMeaning.LEASE_GONE: LeaseGoneError,
            ErrorMeaning.REFUSED: StoreError,
        }
        if verdict in raised:
            if repeated:
                raise UnknownOutcomeError(f"etcd: {text}") from error
            remedy = "; compact and defragment it, then disarm the alarm" if verdict is ErrorMeaning.FULL else ""
            raise raised[verdict](f"etcd: {text}{remedy}") from error
        return verdict

    async def _unavailable_error(self, text: str, *, uncertain: bool) -> StoreError:
        server, settings = self.server, self._settings
        why = await asyncio.to_thread(find_tls_trouble, server, settings, self._clock())
        self._failure = f"etcd at {settings}: {why or text}"
        if why:
            return CertificateError(self._failure)
        return UnknownOutcomeError(self._failure) if uncertain else StoreUnavailableError(self._failure)

    async def check_certificates(self) -> None:
        """Raise CertificateError if certificates make TLS fail with each member."""
        settings = self._settings
        asked = (asyncio.to_thread(find_tls_trouble, each, settings, self._clock()) for each in settings.servers)
        found = await asyncio.gather(*asked)
        if all(found):
            raise CertificateError(f"etcd at {settings}: {found[0]}")

    async def watch(self, first: bytes, end: bytes, since: int) -> AsyncGenerator[Any, None]:
        server = self.watched = self.server
        created = MESSAGES["WatchCreateRequest"](key=first, range_end=end, start_revision=since)
        try:
            # Without _LEADER: the watch must survive an election. Calls notice a partitioned member.
            metadata = [each for each in await self._call_metadata(server) if each != _LEADER]
            call = self._channel_to(server).stream_stream(
                "/etcdserverpb.Watch/Watch",
                request_serializer=MESSAGES["WatchRequest"].SerializeToString,
                response_deserializer=MESSAGES["WatchResponse"].FromString,
            )(metadata=metadata)
            with contextlib.ExitStack() as opened:
                opened.callback(call.cancel)
                await call.write(MESSAGES["WatchRequest"](create_request=created))
                while (answer := await call.read()) is not grpc.aio.EOF:
                    self._check_header(server, answer)
                    self._seen = max([self._seen, *(each.kv.mod_revision for each in answer.events)])
                    yield answer
        except ForeignMemberError:
            self.switch_member(server)
            raise
        except grpc.aio.AioRpcError as error:
            self.switch_member(server)
            self._interpret_error(error)
            raise StoreUnavailableError(f"etcd at {server.target}: {error.details()}") from error
        except asyncio.InvalidStateError as error:  # gRPC raises this after the end of the call
            self.switch_member(server)
            raise StoreUnavailableError(f"etcd at {server.target}: the watch has ended") from error
        self.switch_member(server)
        raise StoreUnavailableError(f"etcd at {server.target}: the watch has ended")

    async def close(self) -> None:
        for channel in (*self._stale, *(each for _, each in self._channels.values())):
            await channel.close()
        self._stale.clear()
        self._channels.clear()

    async def _call_metadata(self, server: EtcdServer) -> tuple[tuple[str, str], ...]:
        """Return a call's metadata: the required leader, and the user's token."""
        if not self._settings.user:
            return (_LEADER,)
        if not self._token:
            wanted = MESSAGES["AuthenticateRequest"](name=self._settings.user, password=self._settings.password)
            answer = await self._unary_method(server, "Auth/Authenticate")(
                wanted, timeout=_LAST_TRIES, metadata=(_LEADER,)
            )
            self._token = answer.token
        return (_LEADER, ("token", self._token))

    def _unary_method(self, server: EtcdServer, method: str) -> Any:
        request, answer = _METHODS[method]
        return self._channel_to(server).unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=MESSAGES[request].SerializeToString,
            response_deserializer=MESSAGES[answer].FromString,
        )

    def _channel_to(self, server: EtcdServer) -> grpc.aio.Channel:
        """Return the connection to a member; a new one when TLS files have changed."""
        stamp = tuple(_file_stamp(path) for path in self._settings.files)
        held = self._channels.get(server)
        if held is not None and held[0] == stamp:
            return held[1]
        if held is not None:
            self._stale.append(held[1])  # a watch may still use it
        channel = self._open_channel(server)
        self._channels[server] = (stamp, channel)
        return channel

    def _open_channel(self, server: EtcdServer) -> grpc.aio.Channel:
        if not server.secure:
            return grpc.aio.insecure_channel(server.target, options=_OPTIONS)
        settings = self._settings
        try:
            files = [Path(path).read_bytes() if path else None
                     for path in (settings.cafile, settings.keyfile, settings.certfile)]  # fmt: skip
        except OSError as error:
            raise StoreError(f"{error.filename}: {error.strerror}") from error
        return grpc.aio.secure_channel(server.target, grpc.ssl_channel_credentials(*files), options=_OPTIONS)


def _transaction_succeeded(method: str, request: Any, message: Any) -> bool:
    """Report whether an answer is of a write at a revision of its own."""
    if method == "KV/Txn":
        return bool(message.succeeded) and any(each.HasField("request_put") for each in request.success)
    return method == "KV/Put"


class CertificateError(StoreUnavailableError):
    """TLS with etcd fails because of a certificate."""


_METHODS: Final = {
    "KV/Range": ("RangeRequest", "RangeResponse"),
    "KV/Put": ("PutRequest", "PutResponse"),
    "KV/DeleteRange": ("DeleteRangeRequest", "DeleteRangeResponse"),
    "KV/Txn": ("TxnRequest", "TxnResponse"),
    "KV/Compact": ("CompactionRequest", "CompactionResponse"),
    "Lease/LeaseGrant": ("LeaseGrantRequest", "LeaseGrantResponse"),
    "Auth/Authenticate": ("AuthenticateRequest", "AuthenticateResponse"),
}


def _file_stamp(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino
