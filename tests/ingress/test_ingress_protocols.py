"""The PROXY protocol on either side, HTTP/2 to Pods, and the access log."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.ingress.site import Site, endpoint, endpoint_slice, ingress, play, rule, service

POD = "127.0.0.11"


def test_clients_come_with_a_proxy_header_and_are_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(here: Site) -> None:
        await here.pods("web", POD)
        here.put(ingress("web", rule("a.example.com", "/")))
        await here.settled()
        answer = await here.curl('http://a.example.com/x"y', "--haproxy-protocol", "-H", "X-A: b")
        assert answer.code == 200

    play(tmp_path, scenario, accept_proxy=True, access_log="stdout")
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    (seen,) = [line for line in lines if line["host"] == "a.example.com"]
    assert (seen["method"], seen["path"], seen["status"], seen["backend"]) == (
        "GET",
        '/x"y',
        200,
        "default:web:80",
    )


@pytest.mark.parametrize(
    ("annotation", "value", "begins"),
    [
        ("proxy-protocol", "v1", b"PROXY TCP4 127.0.0.1 "),
        ("proxy-protocol", "v2", b"\r\n\r\n\x00\r\nQUIT\n"),
        ("backend-protocol", "h2", b"PRI * HTTP/2.0\r\n"),
        ("backend-protocol", "https", b"\x16\x03"),
    ],
)
def test_pods_are_spoken_to_as_asked(tmp_path: Path, annotation: str, value: str, begins: bytes) -> None:
    async def scenario(here: Site) -> None:
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

    play(tmp_path, scenario)
