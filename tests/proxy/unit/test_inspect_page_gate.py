"""Who may look at the page, and what others are told."""

import pytest

from vipwire.http_server.pages import Request
from vipwire.inspect.page.gate import COOKIE, AccessControl, is_loopback

TOKEN = "0123456789abcdef" * 2


def request(host: str = "127.0.0.1:10247", path: str = "/api/diff", method: str = "GET", **headers: str) -> Request:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, path, {}, {"host": host, **fields})


def status(gate: AccessControl, asked: Request) -> int:
    refused = gate.refuse_request(asked)
    return 200 if refused is None else refused.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1:10247", "localhost:1", "[::1]:10247", "10.0.0.9", "LOCALHOST", "Node-1:2"]
)
def test_an_address_and_an_allowed_name_may_be_used(host: str) -> None:
    assert status(AccessControl(frozenset({"node-1"})), request(host)) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:10247", "", "localhost.evil.example", "node-1"]
)
def test_any_other_name_is_refused_for_it_may_be_rebound(host: str) -> None:
    assert status(AccessControl(), request(host)) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_reads_nothing(site: str) -> None:
    assert status(AccessControl(), request(sec_fetch_site=site)) == 403
    assert status(AccessControl(), request(sec_fetch_site="same-origin")) == 200
    assert status(AccessControl(), request(path="/", sec_fetch_site=site)) == 200, "a link may lead to the page"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_is_for_reading_only(method: str) -> None:
    assert status(AccessControl(), request(method=method)) == 405


def test_a_token_is_shown_as_a_cookie_or_a_bearer() -> None:
    gate = AccessControl(token=TOKEN)
    assert status(gate, request()) == 401
    assert status(gate, request(cookie=f"other=1; {COOKIE}={TOKEN}")) == 200
    assert status(gate, request(authorization=f"Bearer {TOKEN}")) == 200
    for wrong in ("", TOKEN[:-1], f"{TOKEN}0", "é" * 32):
        assert status(gate, request(cookie=f"{COOKIE}={wrong}")) == 401
        assert status(gate, request(authorization=f"Bearer {wrong}")) == 401
    assert status(gate, request("evil.example", cookie=f"{COOKIE}={TOKEN}")) == 403


def test_only_the_right_token_lets_in_by_the_address() -> None:
    gate = AccessControl(token=TOKEN)
    assert gate.has_token_in_query(Request("GET", "/", {"token": TOKEN}, {}))
    assert not gate.has_token_in_query(Request("GET", "/", {"token": "wrong"}, {}))
    assert not gate.has_token_in_query(Request("GET", "/api/diff", {"token": TOKEN}, {}))
    assert not AccessControl().has_token_in_query(Request("GET", "/", {"token": ""}, {}))


def test_loopback_is_of_both_families() -> None:
    assert is_loopback("127.0.0.5")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.168.0.1")
