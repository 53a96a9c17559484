"""The answers that the cluster's DNS must give: the ClusterIPs of a Service, and the endpoints of a headless one."""

import ipaddress
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vipwire.kube.objects import Object
from vipwire_lab.connectivity.objects import Echo

PORT: Final = 53
_TYPES: Final = {"A": (1, 4), "AAAA": (28, 16)}
_HEAD: Final = struct.Struct("!HHHHHH")
_RECORD: Final = struct.Struct("!HHIH")
_PATIENCE: Final = 2.0
_CODES: Final = {0: "", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 5: "REFUSED"}


@dataclass(frozen=True, slots=True)
class NameCheck:
    """A question to a DNS server, and the addresses that it must answer."""

    service: str
    server: str
    protocol: str
    name: str
    type: str
    wanted: tuple[str, ...]


def build_name_checks(
    services: Sequence[Object], echoes: Sequence[Echo], servers: Sequence[str], domain: str
) -> Iterator[NameCheck]:
    wanted = {service["metadata"]["name"]: service for service in services}
    for name in ("cluster-ip", "headless"):
        service = wanted.get(name)
        if service is None:
            continue
        held = service["spec"].get("clusterIPs") or []
        addresses = [a for echo in echoes for a in echo.addresses] if name == "headless" else held
        families = service["spec"].get("ipFamilies") or []
        full = f"{name}.{service['metadata']['namespace']}.svc.{domain}"
        for kind, family in (("A", "IPv4"), ("AAAA", "IPv6")):
            found = sorted({a for a in addresses if (":" in a) is (kind == "AAAA")}) if family in families else []
            for server in servers if found else ():
                for protocol in ("udp", "tcp"):
                    yield NameCheck(name, server, protocol, full, kind, tuple(found))


def judge_name(check: NameCheck) -> str:
    """Ask, and return the mistake in the answer; "" if the answer is right."""
    try:
        answer = _ask_server(check)
        code, found = _read_answer(answer, check.type)
    except OSError as error:
        return f"no answer: {error.strerror or 'timed out'}"
    except (struct.error, IndexError, ValueError):
        return "the answer is not a DNS message"
    if code:
        return f"{_CODES.get(code, code)} for {check.name}"
    if tuple(sorted(set(found))) != check.wanted:
        return f"answered {', '.join(sorted(found)) or 'no address'} instead of {', '.join(check.wanted)}"
    return ""


def _ask_server(check: NameCheck) -> bytes:
    question = _encode_question(check.name, _TYPES[check.type][0])
    family = socket.AF_INET6 if ":" in check.server else socket.AF_INET
    kind = socket.SOCK_DGRAM if check.protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(family, kind) as asked:
        asked.settimeout(_PATIENCE)
        asked.connect((check.server, PORT))
        if check.protocol == "udp":
            asked.send(question)
            return asked.recv(4096)
        asked.sendall(struct.pack("!H", len(question)) + question)
        with asked.makefile("rb") as stream:
            return stream.read(*struct.unpack("!H", stream.read(2)))


def _encode_question(name: str, kind: int) -> bytes:
    labels = b"".join(bytes((len(each),)) + each.encode() for each in name.split("."))
    return _HEAD.pack(secrets.randbits(16), 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def _read_answer(answer: bytes, wanted: str) -> tuple[int, list[str]]:
    """Return the answer's code and its addresses of the wanted type."""
    _, flags, questions, answers, _, _ = _HEAD.unpack_from(answer)
    kind, size = _TYPES[wanted]
    place, found = _HEAD.size, list[str]()
    for _ in range(questions):
        place = _skip_name(answer, place) + 4
    for _ in range(answers):
        place = _skip_name(answer, place)
        type_, _, _, length = _RECORD.unpack_from(answer, place)
        place += _RECORD.size
        if type_ == kind and length == size:
            found.append(str(ipaddress.ip_address(answer[place : place + length])))
        place += length
    return flags & 0xF, found


def _skip_name(answer: bytes, place: int) -> int:
    while length := answer[place]:
        if length >= 0xC0:
            return place + 2
        place += length + 1
    return place + 1
