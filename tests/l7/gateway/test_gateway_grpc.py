"""A real gRPC client speaks through GRPCRoutes to real servers: unary and streaming calls, h2c and TLS, statuses."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import grpc
import pytest
from tests.l7.gateway.site import PATIENCE, GatewaySite, gateways, list_all, now, secret_of, service

from vipwire_l7.run.default_certificate import make_certificate

OBJECTS = """
--- Gateway edge
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: plain, port: $plain, protocol: HTTP}
  - {name: secure, port: $secure, protocol: HTTPS, hostname: shop.org, tls: {certificateRefs: [{name: pair}]}}
--- GRPCRoute orders
spec:
  parentRefs: [{name: edge}]
  hostnames: [shop.org]
  rules:
  - matches: [{method: {service: shop.Orders, method: Get}}, {method: {service: shop.Orders, method: Follow}}]
    filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-route, value: orders}]}}
    backendRefs: [{name: one, port: 8080}]
  - matches: [{method: {service: shop.Orders}, headers: [{name: x-canary, value: "yes"}]}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{method: {type: RegularExpression, service: "shop[.]St.*", method: "G[a-z]+"}}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{method: {method: Anywhere}}]
    backendRefs: [{name: two, port: 8080}]
  - matches: [{method: {service: shop.Missing}}]
    backendRefs: [{name: none, port: 8080}]
  - matches: [{method: {service: shop.Copied}}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: copies, port: 8080}}}]
    backendRefs: [{name: one, port: 8080}]
"""
RESET = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)
"""What a client may see instead if HAProxy answers itself: it also resets a stream whose request has not ended."""
SERVERS = {"one": "127.0.0.61", "two": "127.0.0.62", "copies": "127.0.0.63"}


def copies_streams() -> bool:
    said = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, said.split()[2].split(".")[:2])) < (2, 9)


class Shop(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types here
    """A server without generated code. It takes every method: `Follow` streams, all others answer once."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()
        """Each message that has come."""

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method.endswith("/Follow"):
            return grpc.stream_stream_rpc_method_handler(self.follow)
        return grpc.unary_unary_rpc_method_handler(self.answer)

    async def answer(self, request: bytes, context: Any) -> bytes:
        self.heard.put_nowait(request)
        sent = dict(context.invocation_metadata())
        context.set_trailing_metadata((("x-server", self._name.decode()), ("x-route", sent.get("x-route", "-"))))
        if request == b"bad":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "sold out: 100 %")
        return self._name + b" " + request

    async def follow(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.heard.put_nowait(request)
            yield self._name + b" " + request
        context.set_trailing_metadata((("x-ended", "well"),))


@pytest.fixture(scope="module")
def pem() -> str:
    return make_certificate(now(), "shop.org")


@pytest.fixture(scope="module")
def shops() -> dict[str, Shop]:
    return {name: Shop(name) for name in SERVERS}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, pem: str, shops: dict[str, Shop]) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("grpc")) as made:
        servers = []
        for name, address in SERVERS.items():

            async def start(name: str = name, address: str = address) -> Any:
                server = grpc.aio.server(handlers=(shops[name],))
                server.add_insecure_port(f"{address}:{made.pod_port}")
                await server.start()
                return server

            servers.append(made.run(start()))
            made.put(service(name, address, made.pod_port))
        made.put(secret_of("pair", pem))
        made.put(OBJECTS)
        list_all(made)
        made.settle()
        yield made
        for server in servers:
            made.run(server.stop(None))


@pytest.fixture(params=["plain", "secure"])
def through(
    request: pytest.FixtureRequest, here: GatewaySite, pem: str
) -> Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any]:
    """Run something with a channel to one of the listeners."""
    address = f"127.0.0.1:{here.port(request.param)}"
    options = (("grpc.default_authority", "shop.org"), ("grpc.ssl_target_name_override", "shop.org"))

    async def run(of: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        if request.param == "plain":
            channel = grpc.aio.insecure_channel(address, options)
        else:
            trusted = pem.partition("-----BEGIN PRIVATE KEY-----")[0].encode()
            channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trusted), options)
        async with channel:
            return await of(channel)

    return lambda of: here.run(run(of))


def calling(method: str, request: bytes, *metadata: tuple[str, str]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """Make one unary call: its code, details, answer and trailers."""

    async def call(channel: Any) -> tuple[Any, str, bytes, dict[str, str]]:
        made = channel.unary_unary(method)(request, metadata=metadata, timeout=60)
        answer = await made if await made.code() == grpc.StatusCode.OK else b""
        return await made.code(), await made.details(), answer, dict(await made.trailing_metadata())

    return call


@pytest.mark.haproxy
def test_a_unary_call_is_answered_with_its_trailers(through: Any) -> None:
    code, _, answer, trailers = through(calling("/shop.Orders/Get", b"apples"))
    assert (code, answer) == (grpc.StatusCode.OK, b"one apples")
    assert (trailers["x-server"], trailers["x-route"]) == ("one", "orders")


def test_a_servers_error_comes_as_it_was(through: Any) -> None:
    code, details, _, trailers = through(calling("/shop.Orders/Get", b"bad"))
    assert (code, details) == (grpc.StatusCode.FAILED_PRECONDITION, "sold out: 100 %")
    assert trailers["x-server"] == "one"


@pytest.mark.parametrize(
    ("method", "metadata", "server"),
    [
        ("/shop.Orders/Get", ("x-canary", "yes"), "one"),
        ("/shop.Orders/List", ("x-canary", "yes"), "two"),
        ("/shop.Orders/List", ("x-canary", "no"), ""),
        ("/shop.Stock/Get", ("x-a", "b"), "two"),
        ("/shop.Stock/get", ("x-a", "b"), ""),
        ("/shop.OrdersOld/Get", ("x-a", "b"), ""),
        ("/any.Other/Anywhere", ("x-a", "b"), "two"),
    ],
)
def test_methods_and_headers_choose_the_server(
    through: Any, method: str, metadata: tuple[str, str], server: str
) -> None:
    code, _, answer, _ = through(calling(method, b"x", metadata))
    if server:
        assert (code, answer) == (grpc.StatusCode.OK, f"{server} x".encode())
    else:
        assert code in {grpc.StatusCode.UNIMPLEMENTED, *RESET}  # what 404 means (gRPC over HTTP2)


def test_a_missing_server_is_an_error_of_grpc(through: Any) -> None:
    code, *_ = through(calling("/shop.Missing/Get", b"x"))
    assert code in {grpc.StatusCode.UNAVAILABLE, *RESET}


STREAM = (b"one", b"two" * 20_000, b"three")


def following(method: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Send messages one by one, each when the answer to the one before has come."""

    async def follow(channel: Any) -> None:
        call = channel.stream_stream(method)(timeout=60)
        for message in STREAM:
            await call.write(message)
            assert await call.read() == b"one " + message
        await call.done_writing()
        assert await call.read() == grpc.aio.EOF
        assert ("x-ended", "well") in tuple(await call.trailing_metadata())
        assert await call.code() == grpc.StatusCode.OK

    return follow


@pytest.mark.haproxy
def test_a_stream_goes_both_ways_until_it_ends(through: Any) -> None:
    through(following("/shop.Orders/Follow"))


@pytest.mark.haproxy
def test_grpc_route_request_mirror(through: Any, here: GatewaySite, shops: dict[str, Shop]) -> None:
    """GRPCRouteRequestMirror: another server of gRPC hears each call, streams too, which go on meanwhile.

    From HAProxy 2.9, vipwire copies no stream, but the stream goes on.
    """

    async def heard(number: int) -> list[bytes]:
        async with asyncio.timeout(PATIENCE):
            return [await shops["copies"].heard.get() for _ in range(number)]

    code, _, answer, _ = through(calling("/shop.Copied/Get", b"apples"))
    assert (code, answer) == (grpc.StatusCode.OK, b"one apples")
    through(following("/shop.Copied/Follow"))
    if copies_streams():
        assert here.run(heard(4)) == [b"apples", *STREAM]
