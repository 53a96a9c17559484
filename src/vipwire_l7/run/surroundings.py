"""Updates the facts for `plan.destinations`: addresses of this node, the API server and Pods, and DNS answers.

vipwire resolves the names of ExternalName Services itself and gives HAProxy addresses. If HAProxy resolved them, an
allowed name could lead to the node's loopback a second later, for HAProxy 2.6 has no rule about a resolved server
address. vipwire resolves names as they are, without a search path and without /etc/hosts.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from typing import Final, cast
from urllib.parse import urlsplit

import dns.asyncresolver
import dns.exception
import dns.message
import dns.nameserver
import dns.rdatatype
import dns.resolver
import msgspec

from vipwire.config.modes import VIP_DEVICES
from vipwire.kube.access.access import Access
from vipwire.kube.errors import REQUEST_ERRORS, ApiError
from vipwire.kube.objects import ObjectClient
from vipwire.linux.host.addresses import AddressWatch
from vipwire.linux.host.local_networks import LocalRouteWatch, read_local_networks
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Prefix, parse_address
from vipwire_l7.plan.destinations import Destinations, DnsAnswer

RESOLV_CONF: Final = Path("/etc/resolv.conf")
_NAMES_EVERY: Final = 5.0
"""Seconds between two queries for a name."""
_PODS_EVERY: Final = 30.0
_SERVER_EVERY: Final = 60.0
_OWN_EVERY: Final = 60.0
"""Seconds between two reads of the local routes without a change: the kernel does not report all removals."""
_OWN_PAUSE: Final = 5.0
"""The same while they change."""
_HOLD: Final = 30.0
"""Seconds for which the last answer counts while DNS gives none."""
_PATIENCE: Final = 1.0
"""The maximum of seconds that HAProxy waits for the first answers for new names and Pods."""
_AT_ONCE: Final = 32
_TIMEOUT: Final = 5.0
_TYPES: Final = (dns.rdatatype.A, dns.rdatatype.AAAA)
_ENDED: Final = ("Succeeded", "Failed")
Place = tuple[str, int]
"""Address and port of a DNS server."""


class _PodIP(msgspec.Struct, gc=False):
    ip: str | None = None


class _PodStatus(msgspec.Struct, gc=False, rename="camel"):
    phase: str | None = None
    pod_ips: tuple[_PodIP, ...] | None = msgspec.field(default=None, name="podIPs")
    pod_ip: str | None = msgspec.field(default=None, name="podIP")


class _Pod(msgspec.Struct, gc=False):
    status: _PodStatus | None = None


class DestinationFollower:
    """Queries DNS and the API server, and calls `touch` with the Services that depend on a change."""

    def __init__(
        self,
        destinations: Destinations,
        servers: Iterable[Place],
        touch: Callable[[Collection[ObjectName]], None],
        access: Access | None = None,
    ) -> None:
        self._destinations, self._access, self._known, self._touch = destinations, access, destinations.known, touch
        self._known.asks_pods = access is not None
        self._dns = dns.asyncresolver.Resolver(configure=False)
        self._dns.timeout, self._dns.lifetime = 1.5, 4.0
        self._given, self._told = tuple(servers), False
        self._watch, self._routes = AddressWatch(VIP_DEVICES), LocalRouteWatch()
        self._woken, self._own_read, self._own_due = asyncio.Event(), 0.0, 0.0
        self._find_own()
        self._host = urlsplit(access.server).hostname or "" if access is not None else ""
        with contextlib.suppress(ValueError):
            self._known.servers = frozenset((parse_address(self._host),))
        self._asked: dict[str | ObjectName, float] = {}
        """The time of the last query for each name and Pod."""
        self._answered: dict[str, float] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    def close(self) -> None:
        self._watch.close()
        self._routes.close()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._watch.fileno(), self._refresh_addresses)
        loop.add_reader(self._routes.fileno(), self._record_routes)
        try:
            async with asyncio.TaskGroup() as tasks:
                server_due = 0.0
                while True:
                    now = time.monotonic()
                    if self._host and now >= server_due:
                        server_due = now + _SERVER_EVERY
                        self._find_server(loop)
                    if now >= self._own_due and self._find_own():
                        self._touch(self._destinations.reviewed_services)
                    self._forget_unwanted()
                    for key, every in self._list_wanted():
                        if now - self._asked.get(key, float("-inf")) >= every:
                            self._asked[key] = now
                            tasks.create_task(self._query(key))
                    due = min(self._own_due, now + (_NAMES_EVERY if self._asked else _SERVER_EVERY))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(due - now):
                            await self._woken.wait()
                    self._woken.clear()
        finally:
            loop.remove_reader(self._watch.fileno())
            loop.remove_reader(self._routes.fileno())

    @property
    def waits(self) -> bool:
        """Whether there is a name or a Pod without a first query."""
        return any(key not in self._asked for key, _ in self._list_wanted())

    async def query_new_names(self) -> None:
        """Query new names and Pods, and wait for the answers up to a limit."""
        new = [key for key, _ in self._list_wanted() if key not in self._asked]
        self._asked |= dict.fromkeys(new, time.monotonic())
        self._woken.set()
        tasks = [asyncio.ensure_future(self._query(key)) for key in new]
        _, late = await asyncio.wait(tasks, timeout=_PATIENCE)
        for task in late:
            task.cancel()

    def _list_wanted(self) -> Iterator[tuple[str | ObjectName, float]]:
        yield from ((name, _NAMES_EVERY) for name in self._destinations.list_dns_names())
        yield from ((pod, _PODS_EVERY) for pod in self._destinations.list_pods())

    def _forget_unwanted(self) -> None:
        wanted = {key for key, _ in self._list_wanted()}
        for known in cast("tuple[dict[str | ObjectName, object], ...]", (self._known.answers, self._known.pods)):
            for key in known.keys() - wanted:
                del known[key]
        self._asked = {key: then for key, then in self._asked.items() if key in wanted}
        self._answered = {name: then for name, then in self._answered.items() if name in wanted}

    def _refresh_addresses(self) -> None:
        if self._watch.refresh() and self._find_own():
            self._touch(self._destinations.reviewed_services)

    def _record_routes(self) -> None:
        due = self._own_read + _OWN_PAUSE
        if self._routes.changed() and due < self._own_due:
            self._own_due = due
            self._woken.set()

    def _find_own(self) -> bool:
        """Read the addresses that the kernel delivers locally; report whether they have changed."""
        self._own_read = time.monotonic()
        self._own_due = self._own_read + _OWN_EVERY
        found = read_local_networks()
        own = frozenset(each.network for each in found if each == Prefix.host(each.network))
        networks = frozenset(each for each in found if each != Prefix.host(each.network))
        before, now = (self._known.own, self._known.networks), (own, networks)
        self._known.own, self._known.networks = now
        return before != now

    async def _query(self, key: str | ObjectName) -> None:
        async with self._at_once:
            await (self._resolve_name(key) if isinstance(key, str) else self._read_pod(key))

    async def _resolve_name(self, name: str) -> None:
        found, now = await self._query_addresses(name), time.monotonic()
        if found is not None and found.addresses:
            self._answered[name] = now
        elif now - self._answered.get(name, float("-inf")) < _HOLD:
            return
        found = found or DnsAnswer()
        if self._known.answers.get(name) != found:
            self._known.answers[name] = found
            self._touch(self._destinations.find_dependent_services(name=name))

    async def _query_addresses(self, name: str) -> DnsAnswer | None:
        """Query DNS; None if no server answered."""
        self._find_servers()
        answers = await asyncio.gather(*(self._query_records(name, kind) for kind in _TYPES))
        heard = [each for each in answers if each is not None]
        if answers[0] is None and not any(each.answer for each in heard):
            return None
        records = [rrset for each in heard for rrset in each.answer]
        addresses = {parse_address(each.address) for rrset in records if rrset.rdtype in _TYPES for each in rrset}
        aliases = (rrset[0].target.to_text() for rrset in records if rrset.rdtype == dns.rdatatype.CNAME)
        names = tuple(dict.fromkeys(alias.rstrip(".").lower() for alias in aliases))
        return DnsAnswer(tuple(sorted(addresses, key=lambda each: (len(each), each))), names)

    def _find_servers(self) -> None:
        """Use the given servers, or those in resolv.conf now; if there are none, those before."""
        try:
            servers = self._given or read_dns_servers()
        except (OSError, ValueError, dns.exception.DNSException) as error:
            if not self._told:
                log.warning("cannot read the system's DNS servers", error=str(error))
            self._told = True
            return
        self._told = False
        self._dns.nameservers = [dns.nameserver.Do53Nameserver(*server) for server in servers]

    async def _query_records(self, name: str, kind: dns.rdatatype.RdataType) -> dns.message.Message | None:
        try:
            answer = await self._dns.resolve(f"{name}.", kind, raise_on_no_answer=False, search=False)
        except dns.resolver.NXDOMAIN:
            return dns.message.QueryMessage()
        except (dns.exception.DNSException, OSError):
            return None
        return answer.response

    async def _read_pod(self, pod: ObjectName) -> None:
        if self._access is None:
            return
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        found: frozenset[Address] | None = None
        try:
            async with ObjectClient(self._access, "vipwire-ingress", timeout=_TIMEOUT) as client:
                found = read_pod_addresses(await client.read(path, _Pod) or _Pod())
        except REQUEST_ERRORS as error:
            if isinstance(error, ApiError) and error.code == HTTPStatus.FORBIDDEN:
                found = frozenset()
            log.warning("cannot read a Pod", object=pod, error=error)
        if found is not None and self._known.pods.get(pod) != found:
            self._known.pods[pod] = found
            self._touch(self._destinations.find_dependent_services(pod=pod))

    def _find_server(self, loop: asyncio.AbstractEventLoop) -> None:
        """Resolve the API server's name, in a thread that does not delay the end of the process."""

        def set_servers(found: frozenset[Address]) -> None:
            if found and found != self._known.servers:
                self._known.servers = found
                self._touch(self._destinations.reviewed_services)

        def resolve() -> None:
            found = resolve_host(self._host)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(set_servers, found)

        Thread(target=resolve, name="addresses of the API server", daemon=True).start()


def resolve_host(host: str) -> frozenset[Address]:
    """Resolve a host by the system's resolver; empty if unknown."""
    try:
        found = [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(parse_address(text) for text in found if "%" not in text)


def read_pod_addresses(pod: _Pod) -> frozenset[Address]:
    """Read the addresses of a Pod; none if the Pod has terminated."""
    status = pod.status or _PodStatus()
    if status.phase in _ENDED:
        return frozenset()
    found = set[Address]()
    for text in (status.pod_ip, *(each.ip for each in status.pod_ips or ())):
        with contextlib.suppress(ValueError):
            found.add(parse_address(text or ""))
    return frozenset(found)


def read_dns_servers(path: Path = RESOLV_CONF) -> tuple[Place, ...]:
    """Read the system's DNS servers. Raise OSError, ValueError, DNSException."""
    found = dns.resolver.Resolver(configure=False)
    found.read_resolv_conf(path)
    return tuple((str(server), found.port) for server in found.nameservers)


def read_cluster_domains(path: Path = RESOLV_CONF) -> tuple[str, ...]:
    """Read the cluster's domain from the search path that the kubelet writes: `svc.DOMAIN`."""
    with contextlib.suppress(OSError):
        lines = (line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
        searched = (word.lower().rstrip(".") for words in lines if words[:1] == ["search"] for word in words[1:])
        return tuple(word.removeprefix("svc.") for word in searched if word.startswith("svc."))
    return ()
