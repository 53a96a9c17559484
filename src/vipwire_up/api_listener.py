"""Sets up the listener of `vipwire up`: its address, its certificate, and the Services that lead to it."""

import asyncio
import dataclasses
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from vipwire.errors import ConfigError
from vipwire.http_server.server import Serving
from vipwire.logging import log
from vipwire.process_lifecycle.file_limits import raise_limit
from vipwire_up.announcing.keeper import AddressKeeper
from vipwire_up.api.registry import Registry
from vipwire_up.api.server import ApiServer
from vipwire_up.api.serving.limits import Bounds
from vipwire_up.controllers.own_services import (
    API_NUMBER,
    DNS_NUMBER,
    OwnServices,
    build_api_service,
    build_dns_service,
)
from vipwire_up.credentials.keys import Keys
from vipwire_up.credentials.shared import SharedCredentials
from vipwire_up.dns.objects import RESOURCES
from vipwire_up.dns.run import serve_dns
from vipwire_up.dns.settings import Settings as DnsSettings
from vipwire_up.joining.enrolment import Enrolment
from vipwire_up.store_watch.source import StoreSource
from vipwire_up.supervision.own_addresses import ReachableAddress, find_reachable_address, open_inner_socket
from vipwire_up.supervision.parts import PartFailures
from vipwire_up.watchdog.watchdog import WatchedSupervisor

_NAMES: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_NAMES_BELOW: Final = ("kubernetes.default.svc.cluster.local", "127.0.0.1", "::1")
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what is found here instead of them


@dataclass(frozen=True, slots=True)
class ApiListenerSettings:
    """The address of the API server; `names` are further names in its certificate, `node` this machine's Node.

    `own` are the Node's addresses. `life` is the validity of certificates of servers and machines.
    """

    folder: Path
    address: str
    port: int
    names: tuple[str, ...]
    node: str
    own: tuple[str, ...]
    life: timedelta


@dataclass(frozen=True, slots=True)
class Served:
    """A listening server: its closer, its credentials, its URL, and the admin's kubeconfig.

    All servers share the credentials `shared`; `move` is called with the Node's new addresses when they change.
    """

    serving: Serving
    keys: Keys
    shared: SharedCredentials
    url: str
    kubeconfig: Path
    move: Callable[[tuple[str, ...]], Coroutine[Any, Any, None]]


async def serve_api(
    place: ApiListenerSettings,
    registry: Registry,
    services: OwnServices,
    clock: Callable[[], datetime],
    supervisor: WatchedSupervisor,
    addresses: AddressKeeper,
) -> Served:
    """Open the API server, and point Service `kubernetes` to it. Raise ConfigError.

    `supervisor` reports each part's problem and its number of failures; `addresses` reports which addresses are
    silent.
    """
    keys = Keys(place.folder, _certificate_names(place, services.address_at(API_NUMBER)), clock, place.life)
    tls = keys.tls
    bounds, store = Bounds().lowered_to_files(raise_limit()), registry.store

    def troubles() -> Mapping[str, str]:
        found = {**supervisor.troubles(), **({"etcd": store.trouble} if store.shared else {})}
        return found | ({"announcements": addresses.trouble} if not found.get("announcements", "-") else {})

    def notes() -> Mapping[str, str]:
        return {"etcd": store.note, "announcements": addresses.note}

    shared = SharedCredentials(registry, keys, place.node, supervisor.guard("shared credentials"))
    enrolment = Enrolment(registry, keys.load_authority, clock, shared.read_changes)
    identify = partial(keys.access.identify, find_bootstrap_user=enrolment.user_of_token)
    server = ApiServer(registry, identify, enrolment, troubles=troubles, notes=notes, bounds=bounds)
    server.metrics.register(PartFailures(supervisor))
    keys.call_after_changes(server.end_withdrawn)
    try:
        serving, port = await server.listen(place.address, place.port, tls)
    except OSError as error:
        where = f"--bind-address {place.address} --secure-port {place.port}"
        raise ConfigError(f"{where}: {error.strerror}") from error
    listen = partial(_listen_within, server, serving, port=port, tls=tls)
    endpoint = _ApiEndpoint(place, services, port, listen)
    await endpoint.publish_address(place.own)

    async def move(own: tuple[str, ...]) -> None:
        await keys.change_names(
            _certificate_names(dataclasses.replace(place, own=own), services.address_at(API_NUMBER))
        )
        await endpoint.publish_address(own)

    url = _format_url(place.address, port)
    return Served(serving, keys, shared, url, keys.write_kubeconfigs(url), move)


class _ApiEndpoint:
    """Points Service `kubernetes` to the API server; `listen` opens a socket for this machine at an address."""

    def __init__(
        self, place: ApiListenerSettings, services: OwnServices, port: int, listen: Callable[[str], bool]
    ) -> None:
        self._place, self._services, self._port, self._listen = place, services, port, listen
        self._inner = set[str]()

    async def publish_address(self, own: tuple[str, ...]) -> None:
        found = find_reachable_address((self._place.address,), own, self._services.version)
        if found is not None and found.inner and found.address not in self._inner:
            if self._listen(found.address):
                self._inner.add(found.address)
            else:
                found = None
        await self._services.add_service(build_api_service(_list_addresses(found), self._port, self._place.node))


async def serve_names(
    settings: DnsSettings,
    registry: Registry,
    services: OwnServices,
    place: ApiListenerSettings,
    begun: Callable[[], None],
) -> None:
    """Answer DNS until cancelled, and point Service `kube-dns` to it. Raise UnsupportedError.

    `begun` is called once the sockets are open.
    """
    found = find_reachable_address(settings.addresses, place.own, services.version)
    inner = (found.address,) if found is not None and found.inner else ()
    settings = dataclasses.replace(settings, inner=inner, service=services.address_at(DNS_NUMBER))
    listening: asyncio.Future[tuple[int, tuple[str, ...]]] = asyncio.get_running_loop().create_future()
    feed = StoreSource(registry.store, RESOURCES)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_dns(settings, feed.run, lambda *opened: listening.set_result(opened)))
        port, addresses = await listening
        begun()
        if not set(inner) <= set(addresses):
            found = None
        await services.add_service(build_dns_service(_list_addresses(found), port, place.node))


def _list_addresses(found: ReachableAddress | None) -> tuple[str, ...]:
    return (found.address,) if found else ()


def _listen_within(server: ApiServer, serving: Serving, address: str, port: int, tls: ssl.SSLContext) -> bool:
    try:
        server.listen_too(serving, open_inner_socket(address, port), tls)
    except OSError as error:
        log.warning(
            "the API server cannot listen on this address; Service kubernetes has no endpoint",
            address=address,
            port=port,
            reason=error.strerror,
        )
        return False
    return True


def _certificate_names(place: ApiListenerSettings, service: str) -> Iterable[str]:
    found = (*_NAMES, *_NAMES_BELOW, place.address, socket.gethostname().lower(), *place.names, *place.own, service)
    return (name for name in found if name and name not in _WILDCARDS)


def _format_url(address: str, port: int) -> str:
    host = _WILDCARDS.get(address, address)
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
