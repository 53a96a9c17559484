"""Upstream servers that misbehave: `vipwire dns` answers at least what unbound and dnsmasq answer beside it."""

import asyncio
import contextlib
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import pytest
from tests.fakes.ports import free_port
from tests.fakes.upstream import Answering, Upstream, records, upstream
from tests.up.unit.dns_process import running

pytestmark = pytest.mark.slow
TYPES = ("A", "AAAA", "TXT")
NAMES = [f"{kind}{number}.ext.example." for kind in ("there", "gone") for number in range(10)]
SOA = "ext.example. 300 IN SOA ns.ext.example. host.ext.example. 1 2 3 4 300"


def well(message: dns.message.Message, protocol: str) -> bytes:
    """Answer as a resolver of ext.example."""
    name, kind = message.question[0].name.to_text().lower(), message.question[0].rdtype.name
    value = {"A": "192.0.2.1", "AAAA": "2001:db8::1", "TXT": '"text"'}.get(kind)
    if name.startswith("there") and value:
        made = records(f"@ 60 IN {kind} {value}")(message, protocol)
    else:
        made = records(rcode=0 if name == "ext.example." else 3, authority=(SOA,))(message, protocol)
    assert made is not None
    return made[:2] + bytes((made[2] | 1, made[3] | 0x80)) + made[4:]  # RD, RA


def code(number: int) -> Answering:
    return records(rcode=number)


def lame(message: dns.message.Message, _protocol: str) -> bytes:
    response = dns.message.make_response(message)
    response.flags &= ~(dns.flags.RA | dns.flags.AA)
    return response.to_wire()


def silent(_message: dns.message.Message, _protocol: str) -> None:
    """Drop every question."""


def without_edns(message: dns.message.Message, protocol: str) -> bytes:
    if message.edns < 0:
        return well(message, protocol)
    return message.to_wire()[:2] + struct.pack("!HHHHH", 0x8181, 1, 0, 0, 0) + message.to_wire()[12:-11]


def drops_edns(message: dns.message.Message, protocol: str) -> bytes | None:
    return well(message, protocol) if message.edns < 0 else None


def unreadable(message: dns.message.Message, protocol: str) -> bytes:
    """Add an unsolicited HTTPS record that ends within its parameters."""
    made = well(message, protocol)
    content = b"\0\1\0\0\1\0\xff"
    extra = b"\1x\0" + struct.pack("!HHIH", 65, 1, 60, len(content)) + content
    end = len(made) - (11 if message.edns >= 0 else 0)
    return made[:10] + struct.pack("!H", int.from_bytes(made[10:12]) + 1) + made[12:end] + extra + made[end:]


def bad_option(message: dns.message.Message, protocol: str) -> bytes:
    """Add an Extended DNS Error whose text is Latin-1."""
    made = well(message, protocol)
    if message.edns < 0:
        return made
    option = struct.pack("!HHH", 15, 3, 0) + b"\xe4"
    return made[:-2] + struct.pack("!H", len(option)) + option


def nonsense(message: dns.message.Message, protocol: str) -> bytes:
    return well(message, protocol)[:13] + b"\xff\xff"


@contextlib.contextmanager
def judged(name: str, folder: Path, servers: list[Upstream]) -> Iterator[int]:
    """Run another resolver; give its port."""
    port = free_port()
    if name == "unbound":
        forwards = "".join(f"  forward-addr: 127.0.0.1@{each.server.port}\n" for each in servers)
        text = f"""server:
  interface: 127.0.0.1@{port}
  do-not-query-localhost: no
  do-daemonize: no
  username: ""
  chroot: ""
  directory: "{folder}"
  pidfile: ""
  use-syslog: no
  module-config: iterator
remote-control:
  control-enable: no
forward-zone:
  name: "."
{forwards}"""
        (folder / "unbound.conf").write_text(text)
        command = ["unbound", "-d", "-c", str(folder / "unbound.conf")]
    else:
        to = [f"--server=127.0.0.1#{each.server.port}" for each in servers]
        command = [
            "dnsmasq",
            "-k",
            "-R",
            "-h",
            "-o",
            "-C",
            "/dev/null",
            "-p",
            str(port),
            "-a",
            "127.0.0.1",
            "-z",
            "-x",
        ]
        command += ["", *to, "--user=root"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


async def ask(port: int, name: str, kind: str) -> tuple[str, int]:
    """Ask as a stub resolver; return the code and the number of answers. dnspython refuses what dnsmasq passes on."""
    for _ in range(2):
        with contextlib.suppress(dns.exception.DNSException, OSError):
            got = await dns.asyncquery.udp(dns.message.make_query(name, kind), "127.0.0.1", timeout=10, port=port)
            return dns.rcode.to_text(got.rcode()), sum(map(len, got.answer))
    return "nothing", 0


async def ask_all(port: int) -> dict[tuple[str, str], tuple[str, int]]:
    keys = [(name, kind) for name in NAMES for kind in TYPES]
    assert len(keys) == 60
    first = await ask(port, *keys[0])  # the server starts, and learns what its upstream servers know
    rest = await asyncio.gather(*(ask(port, *key) for key in keys[1:]))
    return dict(zip(keys, (first, *rest), strict=True))


@contextlib.asynccontextmanager
async def serving(answering: list[Answering]) -> AsyncIterator[list[Upstream]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(upstream(each)) for each in answering]


ALONE: dict[str, Answering] = {
    "knows no EDNS": without_edns,
    "drops EDNS": drops_edns,
    "one unreadable record": unreadable,
    "an unreadable option": bad_option,
}
FIRST: dict[str, Answering] = {
    "REFUSED": code(5),
    "NOTIMP": code(4),
    "FORMERR": code(1),
    "SERVFAIL": code(2),
    "BADVERS": code(16),
    "lame": lame,
    "silent": silent,
    "nonsense": nonsense,
}
EXPECTED = {
    (name, kind): ("NOERROR", 1) if name.startswith("there") else ("NXDOMAIN", 0) for name in NAMES for kind in TYPES
}


@pytest.mark.parametrize("upstreams", [*ALONE, *FIRST])
async def test_sixty_questions_are_answered_as_well_as_by_others(tmp_path: Path, upstreams: str) -> None:
    answering = [ALONE[upstreams]] if upstreams in ALONE else [FIRST[upstreams], well]
    (tmp_path / "manifests").mkdir()
    async with serving(answering) as servers:
        flags = [word for each in servers for word in ("--upstream", str(each.server))]
        with contextlib.ExitStack() as stack:
            ours = await asyncio.to_thread(stack.enter_context, running(tmp_path / "manifests", *flags))
            judges = [each for each in ("unbound", "dnsmasq") if shutil.which(each)]
            ports = [ours.port, *(stack.enter_context(judged(each, tmp_path, servers)) for each in judges)]
            found = await asyncio.gather(*map(ask_all, ports))
    right = {
        who: sum(told[key] == EXPECTED[key] for key in EXPECTED)
        for who, told in zip(("vipwire", *judges), found, strict=True)
    }
    assert right["vipwire"] == len(EXPECTED) == max(right.values()), right
