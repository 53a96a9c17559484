"""ExternalAuth by gRPC: a real server of gRPC is asked about each request, and a real HAProxy does as it says.

The messages are those of Envoy's ext_authz (service/auth/v3/external_auth.proto), written and read by hand here too.
"""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service
from tests.l7.gateway.test_gateway_auth import GATEWAY, OPEN, route

pytestmark = pytest.mark.haproxy

ADDRESS = "127.0.0.67"
REJECTED = b"\x0a\x02\x08\x07"
"""A CheckResponse whose status is PERMISSION_DENIED."""


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number % 128 + 128]), number // 128
    return out + bytes([number])


def field(number: int, data: bytes | int) -> bytes:
    """Write one field of a message."""
    if isinstance(data, int):
        return varint(number << 3) + varint(data)
    return varint(number << 3 | 2) + varint(len(data)) + data


def read(data: bytes) -> dict[int, list[Any]]:
    """Read a message's fields: texts and numbers."""
    found: dict[int, list[Any]] = {}
    at = 0

    def integer() -> int:
        nonlocal at
        number = shift = 0
        while True:
            number, shift, at = number | (data[at] & 127) << shift, shift + 7, at + 1
            if data[at - 1] < 128:
                return number

    while at < len(data):
        key = integer()
        value: bytes | int = integer()
        if key & 7:
            value, at = data[at : at + int(value)], at + int(value)
        found.setdefault(key >> 3, []).append(value)
    return found


def option(name: str, value: str, *, adds: bool | None = None) -> bytes:
    """Write a HeaderValueOption."""
    header = field(1, field(1, name.encode()) + field(2, value.encode()))
    return header + (b"" if adds is None else field(2, field(1, int(adds))))


class Authorizer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types here
    """Answers by the header `x-want`, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def service(self, handler_call_details: Any) -> Any:
        assert handler_call_details.method == "/envoy.service.auth.v3.Authorization/Check"
        return grpc.unary_unary_rpc_method_handler(self.check)

    async def check(self, request: bytes, context: Any) -> bytes:
        attributes = read(read(request)[1][0])
        http = read(read(attributes[4][0])[2][0])
        headers = {part[1][0].decode(): part[2][0].decode() for part in map(read, http[3])}
        source = read(read(read(attributes[1][0])[1][0])[1][0])
        names = {2: "method", 4: "path", 5: "host", 6: "scheme", 10: "protocol", 11: "body"}
        self.asked.append({name: http[number][0].decode() for number, name in names.items() if number in http})
        self.asked[-1] |= {"headers": headers, "source": source[2][0].decode()}
        want = headers.get("x-want", "")
        if want == "error":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return ANSWERS[want]


SAYS = (option("x-user", "ann"), option("x-more", "added", adds=True), option("x-set", "set", adds=False))
BAD = (option("host", "evil.org"), option("content-length", "0"), option("x-vipwire-mirror", "x"), option("a b", "c"))
DENIED = (
    field(1, field(1, 401))
    + b"".join(field(2, option(*each)) for each in (("www-authenticate", "Bearer"), ("x-two", "1"), ("x-two", "2")))
    + field(3, b"who are you?")
)
ANSWERS = {
    "yes": field(3, b"".join(field(2, each) for each in (*SAYS, *BAD)) + field(5, b"x-removed") + field(5, b"host")),
    "also": field(1, b"") + field(9, b"from another time"),
    "nothing": b"",
    "no": REJECTED + field(2, DENIED),
    "never": REJECTED,
    "nonsense": b"\xff\xff\xff",
    "long": REJECTED + field(2, field(3, b"x" * 30_000)),
    "cut": b"\x0a\x7f\x08",
    "odd": REJECTED + field(2, field(1, field(1, 7))),
}


@pytest.fixture(scope="module")
def server() -> Authorizer:
    return Authorizer()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, server: Authorizer) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("auth")) as made:

        async def start() -> Any:
            listening = grpc.aio.server(handlers=(server,))
            listening.add_insecure_port(f"{ADDRESS}:{made.pod_port}")
            await listening.start()
            return listening

        listening = made.run(start())
        made.put(service("auth", ADDRESS, made.pod_port))
        made.put(service("away", ADDRESS, made.pod_port).replace("ready: true", "ready: false"))
        made.put(GATEWAY)
        made.pods("v1")
        for each in (
            route("all", "grpc: {}"),
            route("some", "grpc: {allowedHeaders: [X-Want]}"),
            route("body", "grpc: {}, forwardBody: {maxSize: 10}"),
            route("away", "grpc: {}", "away"),
            route("none", "grpc: {}", "none"),
        ):
            made.put(each.replace("protocol: HTTP", "protocol: GRPC"))
        made.put(OPEN)
        list_all(made)
        made.settle()
        assert [each.failure for each in made.done] == [""]
        yield made
        made.run(listening.stop(None))


def test_what_the_server_of_grpc_lets_in_passes(here: GatewaySite, server: Authorizer) -> None:
    """HTTPRouteExternalAuthGRPC, HTTPRouteExternalAuthGRPCResponseHeaders: headers are replaced or added."""
    sent = {"X-Want": "yes", "X-User": "mallory", "X-More": "mine", "X-Removed": "here"}
    seen = here.ask("edge", "a.org", "/all/x?q=1", headers=sent).seen
    got = {name: seen["headers"].get(name) for name in ("x-user", "x-more", "x-set", "x-removed", "x-vipwire-mirror")}
    assert got == {
        "x-user": "ann",
        "x-more": "mine,added",
        "x-set": "set",
        "x-removed": None,
        "x-vipwire-mirror": None,
    }
    assert (seen["host"], seen["path"]) == ("a.org", "/all/x?q=1")
    asked = server.asked[-1]
    assert {name: asked[name] for name in ("method", "path", "host", "scheme", "protocol", "source")} == {
        "method": "GET",
        "path": "/all/x?q=1",
        "host": "a.org",
        "scheme": "http",
        "protocol": "HTTP/1.1",
        "source": "127.0.0.1",
    }
    assert asked["headers"]["x-user"] == "mallory"


@pytest.mark.parametrize("want", ["also", "nothing"])
def test_an_answer_without_a_status_lets_in(here: GatewaySite, want: str) -> None:
    assert here.ask("edge", path="/all", headers={"X-Want": want}).pod == "v1"


def test_what_the_server_of_grpc_refuses_gets_its_answer(here: GatewaySite) -> None:
    before = len(here.served)
    answer = here.ask("edge", path="/all", headers={"X-Want": "no"})
    assert (answer.status, answer.text) == (401, "who are you?")
    assert (answer.headers["WWW-Authenticate"], answer.headers.getall("X-Two")) == ("Bearer", ["1", "2"])
    assert [here.ask("edge", path="/all", headers={"X-Want": want}).status for want in ("never", "odd")] == [403, 403]
    assert len(here.served) == before


def test_the_server_of_grpc_gets_the_headers_that_it_may(here: GatewaySite, server: Authorizer) -> None:
    """HTTPRouteExternalAuthGRPCRequestHeadersToAuth."""
    here.ask("edge", path="/some", headers={"X-Want": "yes", "X-Secret": "s"})
    assert set(server.asked[-1]["headers"]) == {"x-want"}
    here.ask("edge", path="/all", headers={"X-Want": "yes", "X-Secret": "s"})
    assert server.asked[-1]["headers"]["x-secret"] == "s"


def test_the_server_of_grpc_gets_the_body_that_it_may(here: GatewaySite, server: Authorizer) -> None:
    """HTTPRouteExternalAuthGRPCForwardBody."""
    sent = {"X-Want": "yes"}
    assert here.ask("edge", path="/body", method="POST", headers=sent, data="0123456789").seen["body"] == "0123456789"
    assert (server.asked[-1]["body"], server.asked[-1]["method"]) == ("0123456789", "POST")
    assert here.ask("edge", path="/body", method="POST", headers=sent, data="0123456789a").status == 413
    assert here.ask("edge", path="/all", method="POST", headers=sent, data="x" * 50_000).seen["body"] == "x" * 50_000
    assert "body" not in server.asked[-1]


@pytest.mark.parametrize(
    ("path", "want", "status"),
    [
        ("/all", "error", 503),
        ("/all", "nonsense", 503),
        ("/all", "cut", 503),
        ("/all", "long", 503),
        ("/away", "yes", 503),
        ("/none", "yes", 500),
    ],
)
def test_nothing_passes_without_a_message(here: GatewaySite, path: str, want: str, status: int) -> None:
    before = len(here.served)
    assert here.ask("edge", path=path, headers={"X-Want": want}).status == status
    assert len(here.served) == before
