"""A node in a new network namespace, with neighbours, a changing DNS server, and tenants' objects.

The node has 10.9.0.1. Listeners at its own addresses answer NODE, and count; 10.9.0.2 to 10.9.0.4 are neighbours
behind a link, which answer with their address. All answer HTTP, and UDP with one datagram, at port 9100.
"""

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import yaml
from tests.fakes.own_network import own_network, run

from vipwire_lab.namespaces.netns import create_namespace, delete_namespace, enter_namespace

Json = dict[str, Any]
NODE, NEAR, OTHER, THIRD = "10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4"
CLASS_E = "240.9.0.2"
"""The same neighbour as NEAR, as in clusters with such Pod addresses."""
PORT, DNS_PORT = 9100, 5353
PATIENCE = 60.0


class _Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the library's name
        assert isinstance(self.server, _Server)
        self.server.hits.append(self.path)
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the library has it
        ...


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self, address: str, text: str, hits: list[str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.text, self.hits = text, hits
        super().__init__((address, PORT), _Answering)


@dataclass
class Node:
    """The node: `hits` are the requests and datagrams at its own addresses."""

    folder: Path
    hits: list[str] = field(default_factory=list)
    records: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """The DNS records' texts by name and type, which tests may change."""

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, self.log[-3000:]
            time.sleep(0.1)

    def ask(self, host: str, port: int = 8000) -> str:
        """Return the answering address, else the status code; `000` without an answer."""
        command = (
            "curl",
            "-s",
            "-m",
            "20",
            "-w",
            "\n%{http_code}",
            "-H",
            f"Host: {host}",
            f"http://127.0.0.1:{port}/",
        )
        body, _, code = subprocess.run(command, capture_output=True, text=True, check=False).stdout.rpartition("\n")
        return body if code == "200" else code

    def datagram(self, port: int) -> str:
        """Send one datagram; return the answering address, "" without one."""
        with socket.socket(type=socket.SOCK_DGRAM) as client:
            client.settimeout(1.0)
            client.sendto(b"hello", ("127.0.0.1", port))
            try:
                return client.recv(100).decode()
            except (TimeoutError, ConnectionRefusedError):
                return ""

    @contextlib.contextmanager
    def running(self, command: str, *flags: str) -> Iterator[None]:
        """Run `vipwire ingress` or `vipwire gateway` for the block."""
        places = ("--http", "*:8000", "--https", "") if command == "ingress" else ("--bind", "127.0.0.1")
        common = ("--run-dir", str(self.folder / "run"), "--grace", "0.2", "--threads", "1", *places)
        words = (sys.executable, "-m", "vipwire", command, *common, "--resolver", f"127.0.0.1:{DNS_PORT}", *flags)
        with (self.folder / "log").open("ab") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE)


@contextlib.contextmanager
def node(folder: Path) -> Iterator[Node]:
    """Make the node with its neighbours, and remove them at the end."""
    here, name = Node(folder), f"tenants-{os.getpid()}"
    with own_network(), contextlib.ExitStack() as stack:
        there = create_namespace(name)
        stack.callback(delete_namespace, name)
        run(f"ip link add here type veth peer name there netns {name}")
        for command in ("addr add 10.9.0.1/24 dev here", "addr add fd09::1/64 dev here nodad", "link set here up"):
            run(f"ip {command}")
        for address in (NEAR, OTHER, THIRD):
            run(f"ip -n {name} addr add {address}/24 dev there")
        run(f"ip -n {name} addr add fd09::2/64 dev there nodad")
        run(f"ip -n {name} addr add {CLASS_E}/32 dev there")
        run(f"ip -n {name} link set there up")
        run(f"ip route add {CLASS_E}/32 via {NEAR}")
        _serve(stack, _Server("::", "NODE", here.hits))  # at all addresses of both families
        _serve_datagrams(stack, "", "NODE", here.hits)
        with enter_namespace(there):
            for address in (NEAR, OTHER, THIRD, CLASS_E, "fd09::2"):
                _serve(stack, _Server(address, address, []))
            for address in (NEAR, OTHER, THIRD):
                _serve_datagrams(stack, address, address, [])
        _serve_names(stack, here)
        yield here


def _serve(stack: contextlib.ExitStack, server: _Server) -> None:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    stack.callback(server.server_close)
    stack.callback(server.shutdown)


def _serve_datagrams(stack: contextlib.ExitStack, address: str, text: str, hits: list[str]) -> None:
    opened = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    opened.bind((address, PORT))

    def answer(data: bytes) -> bytes:
        hits.append(data.decode())
        return text.encode()

    _answer_all(opened, answer)


def _serve_names(stack: contextlib.ExitStack, here: Node) -> None:
    opened = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    opened.bind(("127.0.0.1", DNS_PORT))

    def answer(data: bytes) -> bytes:
        question = dns.message.from_wire(data)
        (asked,) = question.question
        made = dns.message.make_response(question)
        name, owner = asked.name.to_text().rstrip(".").lower(), asked.name.to_text()
        while (alias := here.records.get(name, {}).get("CNAME")) is not None:
            made.answer.append(dns.rrset.from_text(owner, 1, "IN", "CNAME", f"{alias[0]}."))
            name, owner = alias[0], f"{alias[0]}."
        if name not in here.records:
            made.set_rcode(dns.rcode.NXDOMAIN)
        texts = here.records.get(name, {}).get(dns.rdatatype.to_text(asked.rdtype), [])
        if texts:
            made.answer.append(dns.rrset.from_text(owner, 1, "IN", asked.rdtype, *texts))
        return made.to_wire()

    _answer_all(opened, answer)


def _answer_all(opened: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    opened.settimeout(0.2)

    def follow() -> None:
        while opened.fileno() >= 0:
            with contextlib.suppress(OSError):
                data, client = opened.recvfrom(4096)
                opened.sendto(answer(data), client)

    threading.Thread(target=follow, daemon=True).start()


def written(folder: Path, *objects: Json) -> str:
    """Write objects into a file; return its folder."""
    (folder / "objects").mkdir(exist_ok=True)
    made = folder / "objects" / "new"
    made.write_text(yaml.safe_dump_all(objects))
    made.rename(folder / "objects" / "all.yaml")
    return str(folder / "objects")


def service(name: str, external: str = "", namespace: str = "evil", **spec: Any) -> Json:
    """Write a Service, of type ExternalName if `external` is given."""
    body: Json = {"ports": [{"name": "x", "port": 80, "targetPort": PORT}], **spec}
    if external:
        body |= {"type": "ExternalName", "externalName": external}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": body}


def slice_of(
    name: str, *addresses: str, pod: str = "", namespace: str = "evil", protocol: str = "TCP", **meta: Any
) -> Json:
    """Write a custom EndpointSlice of a Service."""
    labels = {"kubernetes.io/service-name": name, **meta.pop("labels", {})}
    ref = {"targetRef": {"kind": "Pod", "name": pod, "namespace": namespace}} if pod else {}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "namespace": namespace, "labels": labels, **meta},
        "addressType": "IPv6" if ":" in addresses[0] else "IPv4",
        "ports": [{"name": "x", "port": PORT, "protocol": protocol}],
        "endpoints": [{"addresses": [each], "conditions": {"ready": True}, **ref} for each in addresses],
    }


def ingress(*names: str, namespace: str = "evil") -> Json:
    """Write an Ingress with a host for each Service: `NAME.example`."""

    def to(name: str) -> Json:
        backend = {"service": {"name": name, "port": {"number": 80}}}
        return {
            "host": f"{name}.example",
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
        }

    meta = {"name": "all", "namespace": namespace}
    spec = {"ingressClassName": "vipwire", "rules": [to(name) for name in names]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta, "spec": spec}


def as_text(*objects: Json) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
