"""A running server: its sockets, its answers that do not fit, its sources, its pages."""

import contextlib
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dns.message
import pytest
from tests.fakes.ports import free_port
from tests.fakes.waiting import until
from tests.up.unit.dns_process import LONG, Server, running

pytestmark = pytest.mark.slow

SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {clusterIP: %s, ports: [{name: http, port: 80}]}
---
"""
MANY = """\
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shop}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-1, namespace: shop, labels: {kubernetes.io/service-name: many}}
addressType: IPv4
endpoints:
"""
ENDPOINTS = "".join(f"- addresses: [10.1.0.{index}]\n" for index in range(1, 101))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dns")
    (made / "services.yaml").write_text(SERVICE % ("web", "10.96.0.10"))
    (made / "many.yaml").write_text(MANY + ENDPOINTS)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    flags = ("--resolv-conf", "", "--http-address", f"127.0.0.1:{free_port()}", "--bind-address", "127.0.0.2")
    with running(folder, *flags) as made:
        yield made


def pages_port(server: Server) -> int:
    command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes().decode().split("\0")
    return int(command[command.index("--http-address") + 1].rpartition(":")[2])


def page(server: Server, path: str) -> tuple[int, str]:
    """Read a page; the port is opened a moment after DNS' own."""
    deadline = time.monotonic() + LONG
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{pages_port(server)}{path}", timeout=LONG) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError:
            assert time.monotonic() < deadline


def test_an_answer_that_does_not_fit_is_cut_after_a_record_and_whole_over_tcp(server: Server) -> None:
    for flags, most in (("+noedns", 512), ("+bufsize=4096", 1232)):
        told = server.dig("many.shop.svc.cluster.local", "A", flags, "+ignore")
        assert "tc" in told.flags
        assert 0 < len(told.answers) < 100
        size = re.search(r"MSG SIZE  rcvd: (\d+)", told.text)
        assert size
        assert int(size[1]) <= most
    told = server.dig("many.shop.svc.cluster.local", "A")
    assert "tc" not in told.flags
    assert len(set(told.answers)) == 100


def test_addresses_take_turns_at_the_beginning(server: Server) -> None:
    firsts = {server.dig("many.shop.svc.cluster.local", "A", "+tcp").answers[0] for _ in range(4)}
    assert len(firsts) > 1


def test_several_questions_on_one_connection_are_answered_in_order(server: Server) -> None:
    queries = [dns.message.make_query("web.shop.svc.cluster.local", "A", id=number) for number in (1, 2, 3)]
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=LONG) as stream,
        stream.makefile("rb") as reader,
    ):
        stream.sendall(b"".join(struct.pack("!H", len(wire)) + wire for wire in (q.to_wire() for q in queries)))
        for query in queries:
            (length,) = struct.unpack("!H", reader.read(2))
            assert query.is_response(dns.message.from_wire(reader.read(length)))


def test_what_is_malformed_is_answered_so_and_does_no_harm(server: Server) -> None:
    query = dns.message.make_query("web.shop.svc.cluster.local", "A", id=99).to_wire()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(LONG)
        client.connect(("127.0.0.1", server.port))
        for wire in (b"", b"\0", query[:-3], b"\xff" * 200, query + b"\0"):
            client.send(wire)
        client.send(query[:4] + b"\0\2" + query[6:])
        client.send(query)
        answers = [client.recv(4096)[:4] for _ in range(4)]
    codes = [(wire[:2], wire[3] & 15) for wire in answers]
    assert codes == [(b"\0\x63", 1)] * 3 + [(b"\0\x63", 0)]


def test_what_is_malformed_is_answered_so_over_tcp_and_the_connection_goes_on(server: Server) -> None:
    good = dns.message.make_query("web.shop.svc.cluster.local", "A", id=99).to_wire()
    with_edns = dns.message.make_query("web.shop.svc.cluster.local", "A", id=99, use_edns=0).to_wire()
    assert with_edns[len(good) :] == b"\0\0\x29\x04\xd0\0\0\0\0\0\0"
    bad = {
        "no question": good[:4] + bytes(8),
        "two questions": good[:4] + b"\0\2" + good[6:12] + 2 * good[12:],
        "a question that is cut": good[:-3],
        "more bytes than records": good + b"\0",
        "an OPT record that is cut": with_edns[:-3],
        "an option longer than its record": with_edns[:-2] + b"\0\4\0\x0a\0\x08",
        "two OPT records": with_edns[:10] + b"\0\2" + with_edns[12:] + with_edns[len(good) :],
        "an OPT record with a name": with_edns[: len(good)] + b"\1a\0" + with_edns[len(good) + 1 :],
    }
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=LONG) as stream,
        stream.makefile("rb") as reader,
    ):
        for name, wire in bad.items():
            for sent, code in ((wire, 1), (good, 0)):
                stream.sendall(struct.pack("!H", len(sent)) + sent)
                (length,) = struct.unpack("!H", reader.read(2))
                told = reader.read(length)
                assert (told[:2], told[3] & 15) == (b"\0\x63", code), name


def test_the_second_address_is_answered_from_itself(server: Server) -> None:
    assert server.dig("@127.0.0.2", "web.shop.svc.cluster.local", "A").answers == ("A 10.96.0.10",)


def test_a_wildcard_answers_from_the_address_that_was_asked(folder: Path) -> None:
    command = [sys.executable, "-m", "vipwire", "dns", "--manifests", str(folder), "--resolv-conf", ""]
    port = str(free_port())
    with started([*command, "--port", port]):
        for address in ("127.0.0.1", "127.0.0.9"):
            asked = ["dig", f"@{address}", "-p", port, "web.shop.svc.cluster.local", "+short", "+tries=3", "+time=10"]
            done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=LONG)
            assert done.stdout == "10.96.0.10\n"


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "all objects are listed" not in (line := process.stderr.readline()):
            assert line, "it ended"
        yield
        process.terminate()
        process.stderr.read()


def test_a_change_of_a_manifest_is_visible(folder: Path, server: Server) -> None:
    assert server.dig("new.shop.svc.cluster.local", "A").status == "NXDOMAIN"
    (folder / "new.yaml").write_text(SERVICE % ("new", "10.96.0.77"))
    until(lambda: server.dig("new.shop.svc.cluster.local", "A").answers == ("A 10.96.0.77",))
    (folder / "new.yaml").unlink()
    until(lambda: server.dig("new.shop.svc.cluster.local", "A").status == "NXDOMAIN")


def test_what_is_wrong_with_an_object_is_said_with_its_field(folder: Path, server: Server) -> None:
    (folder / "bad.yaml").write_text(SERVICE % ("bad", "10.96.0.999"))
    line = server.wait_for("invalid object")
    assert "Service shop/bad: spec.clusterIPs[0]" in line
    (folder / "bad.yaml").unlink()


def test_a_lost_api_server_is_said() -> None:
    command = [sys.executable, "-m", "vipwire", "dns", "--port", "0", "--bind-address", "127.0.0.1"]
    command += ["--resolv-conf", "", "--master", f"http://127.0.0.1:{free_port()}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "cannot read objects" not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.terminate()
        process.stderr.read()
    assert "resource=" in line
    assert "Connect" in line


def test_pages_tell_life_readiness_and_counts(server: Server) -> None:
    server.dig("web.shop.svc.cluster.local", "A")
    assert page(server, "/health") == (200, "OK")
    assert page(server, "/ready") == (200, "OK")
    status, text = page(server, "/metrics")
    assert status == 200
    assert 'vipwire_dns_responses_total{proto="udp",rcode="NOERROR",type="A"}' in text
    assert 'vipwire_dns_held{what="services"}' in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--cluster-domain", "a..b"], "--cluster-domain: 'a..b' is not a DNS name"),
        (["--cluster-domain", "10.in-addr.arpa"], "'10.in-addr.arpa' is the domain of reverse names"),
        (["--bind-address", "here"], "--bind-address: 'here' is not an IP address"),
        (["--upstream", "192.0.2.1:0"], "--upstream: '192.0.2.1:0' has no port of 1 to 65535"),
        (["--master", "http://127.0.0.1:1"], "--manifests: cannot be combined with"),
    ],
)
def test_a_wrong_flag_is_named(folder: Path, flags: list[str], words: str) -> None:
    command = [sys.executable, "-m", "vipwire", "dns", "--manifests", str(folder), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_said_and_ends_it(folder: Path, server: Server) -> None:
    command = [sys.executable, "-m", "vipwire", "dns", "--manifests", str(folder), "--resolv-conf", ""]
    command += ["--bind-address", "127.0.0.1", "--port", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {server.port}: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr
