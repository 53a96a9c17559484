"""Clients that observe a failover: connections to an address, writes at an API server, ARP questions."""

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from vipwire_lab.cluster.cluster import Lab
from vipwire_up.announcing.announce import build_arp_frame, read_arp_claim

PORT: Final = 80
INTERVAL, TIMEOUT = 0.02, 0.4
_API_TIMEOUT: Final = 1.0
_API_PAUSE: Final = 0.1
_CONFIG_MAPS: Final = "/api/v1/namespaces/default/configmaps"


class Client(threading.Thread):
    """Connects repeatedly, from a namespace."""

    def __init__(self, lab: Lab, address: str, number: int = PORT) -> None:
        super().__init__(daemon=True)
        self._lab, self._target = lab, (address, number)
        self._stop_asked = threading.Event()
        self.results: list[tuple[float, float, bool]] = []

    def run(self) -> None:
        with self._lab.enter_namespace("client"):
            asyncio.run(self._connect_all_the_time())

    async def _connect_all_the_time(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self._stop_asked.is_set():
                tasks.create_task(self._connect())
                await asyncio.sleep(INTERVAL)

    async def _connect(self) -> None:
        began, good = time.monotonic(), False
        with contextlib.suppress(OSError):
            async with asyncio.timeout(TIMEOUT):
                _, writer = await asyncio.open_connection(*self._target)
                good = True
                writer.transport.abort()
        self.results.append((began, time.monotonic(), good))

    def end(self) -> None:
        self._stop_asked.set()
        self.join()

    def outage(self) -> tuple[float, int]:
        """Return the longest outage in seconds, and the number of failed connections."""
        longest, first, failed = 0.0, 0.0, 0
        for began, ended, good in sorted(self.results):
            if good:
                if first:
                    longest = max(longest, ended - first)
                first = 0.0
            else:
                failed += 1
                first = first or began
        if first:
            longest = max(longest, time.monotonic() - first)
        return longest, failed


class Writer(threading.Thread):
    """Writes a ConfigMap through one API server repeatedly, from a machine's namespace, over TLS as the admin."""

    def __init__(self, lab: Lab, node: str, data: Path) -> None:
        super().__init__(daemon=True)
        self._lab, self._node, self._stop_asked = lab, node, threading.Event()
        self._context = ssl.create_default_context(cafile=str(data / "pki/ca.crt"))
        self._context.load_cert_chain(data / "pki/admin.crt", data / "pki/admin.key")
        self.longest = 0.0

    def run(self) -> None:
        """Write until told to end; repeat failed writes."""
        name, number = f"written-at-{self._node}", 0
        with self._lab.enter_namespace(self._node):
            self._ask("POST", _CONFIG_MAPS, {"metadata": {"name": name}})
            while not self._stop_asked.wait(_API_PAUSE):
                began, number = time.monotonic(), number + 1
                while not self._ask("PATCH", f"{_CONFIG_MAPS}/{name}", {"data": {"n": str(number)}}):
                    if self._stop_asked.wait(0.05):
                        break
                self.longest = max(self.longest, time.monotonic() - began)

    def _ask(self, method: str, path: str, body: Mapping[str, object]) -> bool:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        connection = http.client.HTTPSConnection("127.0.0.1", 6443, timeout=_API_TIMEOUT, context=self._context)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": kind})
            return connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def end(self) -> None:
        self._stop_asked.set()
        self.join()


class Owners(threading.Thread):
    """Asks by ARP which machines have the addresses, and records questions with two answers."""

    def __init__(self, lab: Lab, addresses: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self._wanted = addresses
        with lab.enter_namespace("client"):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
            self._socket.bind(("lan0", 0x0806))
        self._stop_asked = threading.Event()
        self.questions, self.answered = 0, 0
        self.doubles: dict[str, list[float]] = {}
        self.seen: set[str] = set()
        """Addresses that exactly one machine has answered for; the reader clears the set."""

    def run(self) -> None:
        hardware = self._socket.getsockname()[4]
        me = socket.inet_aton("10.0.0.99")
        while not self._stop_asked.is_set():
            for address in self._wanted:
                packed = socket.inet_aton(address)
                with contextlib.suppress(OSError):
                    self._socket.send(build_arp_frame(1, hardware, me, b"\xff" * 6, packed))
                found = {claim[0] for claim in self._answers(hardware) if claim[1] == packed}
                self.questions += 1
                self.answered += bool(found)
                if len(found) == 1:
                    self.seen.add(address)
                if len(found) > 1:
                    self.doubles.setdefault(address, []).append(time.monotonic())

    def _answers(self, hardware: bytes) -> Iterator[tuple[bytes, bytes]]:
        until = time.monotonic() + 0.02
        while (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                frame = self._socket.recv(2048)
            except OSError:  # no more packets
                return
            claim = read_arp_claim(frame)
            if claim and frame[:6] == hardware:
                yield claim

    def longest(self) -> float:
        """Return the longest time with two owners of one address; doubles within a second count as one."""
        longest = 0.0
        for times in self.doubles.values():
            first = before = times[0]
            for each in times:
                first = first if each - before < 1.0 else each
                longest, before = max(longest, each - first), each
        return longest

    def end(self) -> None:
        self._stop_asked.set()
        self.join()
        self._socket.close()


@contextlib.contextmanager
def forgetting(lab: Lab) -> Iterator[None]:
    """Clear the client's neighbour table several times a second, as for clients that have just started."""
    stop = threading.Event()

    def forget() -> None:
        while not stop.wait(0.3):
            lab.run("client", ["ip", "neigh", "flush", "dev", "lan0"], check=False)

    thread = threading.Thread(target=forget, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
