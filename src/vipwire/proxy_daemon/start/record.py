"""A proxy's claim on its network namespace, and its record in the state directory.

One proxy runs per network namespace, because all modes serve the same VIPs. `vipwire proxy` and `vipwire up` claim
the namespace before they write anything; `vipwire cleanup` checks the claim. `status`, `plan`, `explain` and `check`
read the record, proxy-NETNS.json, for the proxy's flags. It is replaced atomically when it changes, and every
`SIGN_SECONDS`. The claim tells whether the proxy runs:

    the claim's holder wrote the record                  it runs
    the claim is free, or another proxy holds it        it ended (`ended` is set), or it died
"""

import asyncio
import contextlib
import enum
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import field

from vipwire.config.configuration import Config
from vipwire.file_io.files import (
    SIGN_SECONDS,
    build_state_path,
    make_folders,
    remove_files_of_gone_namespaces,
    replace_file,
)
from vipwire.logging import log
from vipwire.model.net import Prefix, format_address, parse_address
from vipwire.model.node import Node
from vipwire.model.value import Value
from vipwire.process_lifecycle.single_instance import Claim, Holder, claim_names, find_holder
from vipwire.proxy_daemon.start.modes import find_mode

PROXY: Final = "vipwire-proxy"


def claim_proxy(
    config: Config, command: str = "vipwire proxy", names: Iterable[str] = (), details: Iterable[str] = ()
) -> AbstractContextManager[Claim]:
    """Claim this network namespace and further names. Raise AlreadyRunningError if another proxy has it.

    With `--takeover` the other proxy ends first, unless this configuration cannot run here.
    """
    details = (f"{config.proxy_mode} mode", f"state directory {config.state_dir}", *details)
    ready = partial(find_mode, config) if config.takeover else None
    return claim_names((PROXY, *names), command, details, ready=ready)


def find_running_proxy() -> Holder | None:
    return find_holder(PROXY)


_VERSION: Final = 1
_PAUSE_SECONDS: Final = 1.0
"""The least time between two writes."""


class ProxyState(enum.Enum):
    """State of this network namespace's proxy; commands print the value."""

    RUNNING = "running"
    ENDED = "ended"
    DIED = "died"
    NONE = "none"


class EjectedEndpoint(Value, frozen=True):
    """An endpoint that a proxy ejected from a Service port, until a time in seconds since the epoch."""

    namespace: str
    service: str
    port_name: str
    protocol: int
    address: str
    port: int
    until: float


class NodeFacts(Value, frozen=True):
    """The last known facts of the Node object, for a start while the API server has none."""

    addresses: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()
    zone: str = ""


class ProxyRecord(Value, frozen=True):
    """The record of one proxy. Times are seconds since the epoch.

    `flags` start the same proxy again, configuration file included. `synced` is each family's last successful sync,
    `failing` the error of each unreadable kind, `problems` further texts for operators, `ejected` the endpoints that
    the rules omit, `facts` the Node's last known facts, `api_servers` the API server's addresses. `seen` is when the
    record was written, `ended` and `reason` when and why the proxy ended.
    """

    pid: int
    started: float
    version: str
    node: str
    mode: str
    flags: tuple[str, ...] = ()
    synced: Mapping[str, float | None] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    ejected: tuple[EjectedEndpoint, ...] = ()
    facts: NodeFacts = NodeFacts()
    api_servers: tuple[tuple[str, int], ...] = ()
    seen: float = 0.0
    ended: float | None = None
    reason: str = ""
    format: int = _VERSION


_READER: Final = msgspec.json.Decoder(ProxyRecord)


def read_record(state_dir: str, namespace: str = "") -> tuple[ProxyState, ProxyRecord | None]:
    """Return the state of this namespace's proxy, and its record; None if unreadable. Raises nothing."""
    path = _build_record_path(state_dir, namespace)
    try:
        record, owner = _READER.decode(path.read_bytes()), path.stat().st_uid
    except (OSError, msgspec.DecodeError):
        return ProxyState.NONE, None
    if record.format != _VERSION:
        return ProxyState.NONE, None
    holder = find_running_proxy()
    if holder is not None and holder.uid == owner and _is_writer(holder, record):
        return ProxyState.RUNNING, record
    return (ProxyState.DIED if record.ended is None else ProxyState.ENDED), record


def read_recorded_facts(node: Node | None) -> NodeFacts:
    if node is None:
        return NodeFacts()
    return NodeFacts(tuple(map(format_address, node.addresses)), tuple(map(str, node.pod_cidrs)), node.zone)


def read_recorded_node(state_dir: str, name: str) -> Node | None:
    """Return the Node's last known facts from the record of this network namespace's last proxy."""
    _, record = read_record(state_dir)
    if record is None or record.node != name or record.facts == NodeFacts():
        return None
    facts = record.facts
    try:
        addresses = tuple(map(parse_address, facts.addresses))
        return Node(name, addresses, tuple(map(Prefix.parse, facts.pod_cidrs)), facts.zone)
    except ValueError:
        return None


def _is_writer(holder: Holder, record: ProxyRecord) -> bool:
    """Report whether a claim's holder wrote a record. Its pid may differ in the holder's own pid namespace."""
    return record.pid == holder.pid or str(record.pid) == holder.said.get("pid")


def open_record(state_dir: str, namespace: str = "") -> "Recorder":
    """Open the record of this proxy, which holds the claim.

    If the state folder is not writable, the proxy runs without a record.

    Removes files of deleted network namespaces.
    """
    path = _build_record_path(state_dir, namespace)
    try:
        make_folders(path.parent)
        remove_files_of_gone_namespaces(path.parent, path)
    except OSError as error:
        log.detail(2, "keeping no record of this proxy", path=path, error=error)
        return Recorder(None)
    return Recorder(path)


class Recorder:
    """Writes one proxy's record; nowhere if `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last: ProxyRecord | None = None
        self._is_told = False
        self._changed = asyncio.Event()

    async def run(self, look: Callable[[], ProxyRecord]) -> None:
        """Write the result of `look` after each call of `write_soon`, until cancelled, and as a sign of life."""
        while self._path is not None:
            self._changed.clear()
            self.write(look())
            await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SIGN_SECONDS - _PAUSE_SECONDS):
                    await self._changed.wait()

    def write_soon(self) -> None:
        """Have the record written, within a second of the last time."""
        self._changed.set()

    def write(self, record: ProxyRecord) -> None:
        """Write a record if its content changed or the last write is older than the interval."""
        now, last = time.time(), self._last
        if self._path is None or (last and replace(last, seen=0.0) == record and now - last.seen < SIGN_SECONDS):
            return
        record = replace(record, seen=now)
        try:
            replace_file(self._path, msgspec.json.encode(record))
        except OSError as error:
            if not self._is_told:
                log.warning("cannot write the record of this proxy for `vipwire status`", error=error)
            self._is_told = True
        else:
            self._last, self._is_told = record, False

    def end(self, reason: str) -> None:
        if self._last is not None:
            self.write(replace(self._last, seen=0.0, ended=time.time(), reason=reason))


def _build_record_path(state_dir: str, namespace: str) -> Path:
    return build_state_path(state_dir, "proxy", "json", namespace)
