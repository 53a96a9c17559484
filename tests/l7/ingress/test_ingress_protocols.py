"""The PROXY protocol on either side, gRPC and HTTP/2 to Pods, and the access log."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from tests.l7.configurations import check_configuration
from tests.l7.ingress.site import (
    Site,
    certificate,
    endpoint,
    endpoint_slice,
    in_site,
    ingress,
    rule,
    service,
    site,
    tls_secret,
)

pytestmark = pytest.mark.haproxy

POD = "127.0.0.11"


async def test_clients_come_with_a_proxy_header_and_are_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with site(tmp_path, accept_proxy=True, access_log="stdout") as here:
        await here.pods("web", POD)
        here.put(ingress("web", rule("a.example.com", "/")))
        await here.settled()
        answer = await here.curl('http://a.example.com/x"y', "--haproxy-protocol", "-H", "X-A: b")
        assert answer.code == 200
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    (seen,) = [line for line in lines if line["host"] == "a.example.com"]
    assert (seen["method"], seen["path"], seen["status"], seen["backend"]) == ("GET", '/x"y', 200, "default:web:80")


async def test_requests_are_logged_to_a_syslog_server(tmp_path: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(60)

        async def logged() -> dict[str, object]:
            line = b""
            while not line.startswith(b"{"):  # HAProxy's own notices, of reloads, come too
                line = await asyncio.to_thread(syslog.recv, 4096)
            return cast("dict[str, object]", json.loads(line))

        async with site(tmp_path, access_log=f"127.0.0.1:{syslog.getsockname()[1]}") as here:
            await here.pods("web", POD)
            here.put(ingress("web", rule("a.example.com", "/")))
            await here.settled()
            assert (await here.curl("http://a.example.com/x")).code == 200
            seen = await logged()
            assert (seen["host"], seen["path"], seen["status"]) == ("a.example.com", "/x", 200)
            assert seen["backend"] == "default:web:80"
            await here.pods("new", POD)
            here.put(ingress("new", rule("b.example.com", "/", service="new")))
            await here.settled()
            assert (await here.curl("http://b.example.com/x")).code == 200
            assert (await logged())["backend"] == "default:new:80"
            assert here.reloads == ["start"], "it is in a spare backend"
            check_configuration(here.haproxy.folder)


@pytest.mark.parametrize(
    ("annotation", "value", "begins"),
    [
        ("proxy-protocol", "v1", b"PROXY TCP4 127.0.0.1 "),
        ("proxy-protocol", "v2", b"\r\n\r\n\x00\r\nQUIT\n"),
        ("backend-protocol", "h2", b"PRI * HTTP/2.0\r\n"),
        ("backend-protocol", "https", b"\x16\x03"),
    ],
)
@in_site()
async def test_pods_are_spoken_to_as_asked(here: Site, annotation: str, value: str, begins: bytes) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(len(begins))
        if not heard.done():
            heard.set_result(data)
        writer.close()

    async with await asyncio.start_server(listen, POD, here.pod_port):
        here.put(service("web"), endpoint_slice("web", here.pod_port, [endpoint(POD)]))
        here.put(ingress("web", rule("a.example.com", "/"), annotations={f"vipwire.io/{annotation}": value}))
        await here.settled()
        _, client = await asyncio.open_connection("127.0.0.1", here.http)
        client.write(b"GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
        assert await heard == begins
        client.close()


@in_site()
async def test_pods_that_speak_tls_answer(here: Site, tmp_path: Path) -> None:
    file = tmp_path / "pod.pem"
    file.write_text(certificate("pod.example.com"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    await here.pod(POD, context)
    https = [{"name": "http", "port": 80, "appProtocol": "https"}]
    here.put(service("web", ports=https), endpoint_slice("web", here.pod_port, [endpoint(POD)]))
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    assert (await here.curl("http://a.example.com/")).pod == POD


METHOD = "/shop.Orders/Follow"


class Orders(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types here
    """A gRPC server without generated code: it echoes each message, and ends with a trailer or an error."""

    def service(self, handler_call_details: Any) -> Any:
        known = handler_call_details.method == METHOD
        return grpc.stream_stream_rpc_method_handler(self.follow) if known else None

    async def follow(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        context.set_trailing_metadata((("x-ended", "well"),))
        bad = False
        async for request in requests:
            if request == b"bad":
                bad = True
            else:
                yield b"echo " + request
        if bad:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such order")


@pytest.mark.parametrize("how", ["GRPC", "GRPCS", "appProtocol"])
@in_site()
async def test_a_grpc_client_streams_through(here: Site, how: str) -> None:
    pem = certificate("grpc.example.com")
    address, server = f"{POD}:{here.pod_port}", grpc.aio.server(handlers=(Orders(),))
    if how == "GRPCS":
        pair = pem.partition("-----BEGIN PRIVATE KEY-----")
        server.add_secure_port(address, grpc.ssl_server_credentials([("".join(pair[1:]).encode(), pair[0].encode())]))
    else:
        server.add_insecure_port(address)
    await server.start()
    grpc_port = {"name": "http", "port": 80} | ({"appProtocol": "kubernetes.io/h2c"} if how == "appProtocol" else {})
    here.put(service("web", ports=[grpc_port]), endpoint_slice("web", here.pod_port, [endpoint(POD)]))
    annotations = {"nginx.ingress.kubernetes.io/backend-protocol": how} if how.startswith("GRPC") else {}
    tls = [{"hosts": ["grpc.example.com"], "secretName": "pair"}]
    made = ingress("web", rule("grpc.example.com", "/shop.Orders"), annotations=annotations, tls=tls)
    here.put(tls_secret("pair", pem), made)
    await here.settled()
    credentials = grpc.ssl_channel_credentials(pem.partition("-----BEGIN PRIVATE KEY-----")[0].encode())
    options = (("grpc.ssl_target_name_override", "grpc.example.com"),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{here.https}", credentials, options) as channel:
        await talk(channel)
    await server.stop(None)


async def talk(channel: Any) -> None:
    """Send one message after the other, each when the one before has been answered; then a bad one, and elsewhere."""
    call = channel.stream_stream(METHOD)()
    for message in (b"one", b"two", b"three"):
        await call.write(message)
        assert await call.read() == b"echo " + message
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF
    assert ("x-ended", "well") in tuple(await call.trailing_metadata())
    assert await call.code() == grpc.StatusCode.OK
    refused = channel.stream_stream(METHOD)()
    await refused.write(b"bad")
    await refused.done_writing()
    assert (await refused.code(), await refused.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no such order")
    elsewhere = channel.stream_stream("/other.Service/Method")()
    # The first is what 404 means (gRPC over HTTP2); HAProxy also resets a stream whose request has not ended.
    assert await elsewhere.code() in {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
    }
