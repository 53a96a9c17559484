"""Reads the objects for a command: once, or until the command ends.

A proxy waits for its API server forever; a command fails at the first error or after `PATIENCE` seconds.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from vipwire.config.configuration import Config
from vipwire.errors import ConfigError, raise_ungrouped
from vipwire.kube.access.access import Access, load_access
from vipwire.kube.access.kubectl import find_files_of_this_machine, find_kubectl_files
from vipwire.kube.client import ApiSource, KeptSource
from vipwire.kube.contact import Health
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire.kube.manifests.source import ManifestSource
from vipwire.kube.proxied import proxy_resources
from vipwire.proxy_daemon.loop import Source
from vipwire.terminal.output import print_note, print_warning
from vipwire.watched_objects.event import Event
from vipwire.watched_objects.store import Store

PATIENCE = 15.0
"""Seconds for the first list."""
_LOOK_SECONDS = 0.05


def node_name(config: Config) -> str:
    """Return the name of this node, chosen as the proxy does."""
    return config.hostname_override or socket.gethostname().lower()


def make_source(config: Config) -> Source:
    """Choose the source that the flags name, else kubectl's, with a note. Raise ConfigError without either."""
    if config.manifests:
        return KeptSource(ManifestSource(map(Path, config.manifests), MANIFESTS))
    return KeptSource(ApiSource(api_access(config), proxy_resources(node_name(config))))


def api_access(config: Config) -> Access:
    """Find the API server of the flags, else of kubectl, else of this Pod or machine. Raise ConfigError."""
    kubeconfig = config.client_connection.kubeconfig
    if kubeconfig or config.master:
        return load_access(Path(kubeconfig) if kubeconfig else None, config.master or None)
    if (found := find_kubectl_files()) is not None:
        return found.access(print_note)
    try:
        return load_access()
    except ConfigError as error:
        if (found := find_files_of_this_machine()) is not None:
            return found.access(print_note)
        raise ConfigError(f"{error}; $KUBECONFIG is not set, and there is no ~/.kube/config") from error


def read_objects(config: Config) -> Store:
    """Read all objects once. Warn about unreadable files, because their objects are missing."""
    store = list_once(make_source(config))
    warn_of_files(store)
    return store


def warn_of_files(store: Store) -> None:
    for problem in store.problems:
        if problem.kind == "Manifest":
            print_warning(f"its objects are missing here: {problem}")


def list_once(source: Source, patience: float = PATIENCE) -> Store:
    """Read all objects once. Raise ConfigError with each kind's error after `patience` seconds."""
    store = Store()
    asyncio.run(_run_source(source, store, patience))
    return store


def follow_source(
    source: Source, changed: Callable[[Store], None], interval: float, patience: float = PATIENCE
) -> None:
    """Read all objects and watch; call `changed` after the first list and then every `interval` seconds."""
    store = Store()
    asyncio.run(_run_source(source, store, patience, lambda: changed(store), interval))


async def _run_source(
    source: Source, store: Store, patience: float, look: Callable[[], None] | None = None, interval: float = 0.0
) -> None:
    listed = asyncio.Event()

    def emit(event: Event) -> None:
        store.apply(event)
        if not store.waiting:
            listed.set()

    with raise_ungrouped():
        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(emit), name="source")
            await _wait_for_list(source, store, listed, patience)
            while look is not None:
                look()
                await asyncio.sleep(interval)
            task.cancel()


async def _wait_for_list(source: Source, store: Store, listed: asyncio.Event, patience: float) -> None:
    """Wait for the first lists. Raise ConfigError if each missing one has failed, or after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not listed.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await listed.wait()
        awaited = [health for health in source.health() if not health.synced]
        if not listed.is_set() and awaited and all(health.error for health in awaited):
            raise ConfigError("\n".join(_list_reasons(awaited)))
        if not listed.is_set() and time.monotonic() > deadline:
            missing = ", ".join(sorted(kind.value for kind in store.waiting))
            failed = [health for health in awaited if health.error]
            lines = [f"the API server sent no list of {missing} within {patience:g} seconds", *_list_reasons(failed)]
            raise ConfigError("\n".join(lines))


def describe_source_error(source: Source) -> str:
    """Return why a source cannot be read now; "" if it answers."""
    return "; ".join(_list_reasons(each for each in source.health() if each.error))


def _list_reasons(failed: Iterable[Health]) -> list[str]:
    by_error: dict[str, list[str]] = {}
    for health in failed:
        by_error.setdefault(health.error.removeprefix("list: "), []).append(health.resource)
    if len(by_error) == 1:
        return list(by_error)
    return [f"{', '.join(resources)}: {error}" for error, resources in by_error.items()]
