"""The pages over HTTP: what is served, under which policy, and how much at once."""

import asyncio
import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.unit.inspected import example, look, make_config, programmed

from vipwire.errors import ConfigError
from vipwire.http_server.exchange import Reply, Stream
from vipwire.http_server.pages import Request
from vipwire.inspect.page.board import Board
from vipwire.inspect.page.command import read_token
from vipwire.inspect.page.gate import COOKIE, AccessControl
from vipwire.inspect.page.look import Look, build_row
from vipwire.inspect.page.questions import find_question
from vipwire.inspect.page.site import MOST_READERS, SAFE, PageSite
from vipwire.inspect.status.document import build_service_document

TOKEN = "0123456789abcdef" * 2
HOSTILE = "</script><img src=x onerror=alert(1)>\n\nevent: head\ndata: {}"


def make_site(folder: Path, board: Board | None = None, token: str = "") -> PageSite:
    config = make_config(folder, example())
    return PageSite(AccessControl(token=token), board or Board(), Look(config, lambda _word, _document: None))


def asked(site: PageSite, path: str, **query: str) -> Reply | Stream:
    return asyncio.run(site(Request("GET", path, query, {"host": "localhost"})))


def test_every_file_that_the_page_names_is_served_under_a_strict_policy(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    folder = files("vipwire.inspect.page") / "files"
    named = {"/"}
    for each in folder.iterdir():
        named |= set(re.findall(r'(?:src|href|from) ?=?"\.?(/[a-z.]+)"', each.read_text(encoding="utf-8")))
    assert {"/main.js", "/page.css", "/words.js", "/mark.svg"} <= named
    for path in named:
        found = asked(site, path)
        assert isinstance(found, Reply)
        assert found.status == 200, path
        assert {**found.headers} | SAFE == {**found.headers}, "each has the whole policy"
    assert "default-src 'none'" in SAFE["Content-Security-Policy"]
    assert "unsafe" not in SAFE["Content-Security-Policy"]


def test_no_script_parses_text_as_html_and_nothing_comes_from_elsewhere() -> None:
    for each in (files("vipwire.inspect.page") / "files").iterdir():
        text = each.read_text(encoding="utf-8")
        words = (
            "innerHTML =",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "srcdoc",
            ' style="',
            "onclick=",
        )
        assert not [word for word in words if word in text], each.name
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), each.name


def test_without_the_token_there_is_only_the_place_to_show_it(tmp_path: Path) -> None:
    site = make_site(tmp_path, token=TOKEN)
    page = asked(site, "/")
    assert isinstance(page, Reply)
    assert isinstance(page.body, bytes)
    assert b'name="token"' in page.body
    for path in ("/main.js", "/api/diff", "/api/events", "/api/modes"):
        refused = asked(site, path)
        assert isinstance(refused, Reply)
        assert refused.status == 401, path
    entered = asked(site, "/", token=TOKEN)
    assert isinstance(entered, Reply)
    assert (entered.status, entered.headers["Location"]) == (303, "/")
    assert entered.headers["Set-Cookie"] == f"{COOKIE}={TOKEN}; HttpOnly; SameSite=Strict; Path=/"


def test_before_the_first_look_questions_are_for_later(tmp_path: Path) -> None:
    for path, status in (("/api/diff", 503), ("/api/nothing", 404), ("/nothing", 404)):
        found = asked(make_site(tmp_path), path)
        assert isinstance(found, Reply)
        assert found.status == status


async def test_a_hostile_name_ends_no_event_and_opens_no_element(tmp_path: Path) -> None:
    board = Board()
    board.put_rows([{"name": HOSTILE}])
    found = await make_site(tmp_path, board)(Request("GET", "/api/events", {}, {"host": "localhost"}))
    assert isinstance(found, Stream)
    async with asyncio.timeout(30):
        said = b"".join([await anext(found.pieces) for _ in range(2)])
    await found.pieces.aclose()
    assert b"<" not in said
    events = [each for each in said.split(b"\n\n") if each]
    assert [each.split(b"\n")[0] for each in events] == [b"retry: 2000", b"event: rows"]
    assert json.loads(events[1].partition(b"data: ")[2])["changed"][0]["name"] == HOSTILE


async def test_so_many_readers_and_no_more_and_one_that_leaves_makes_room(tmp_path: Path) -> None:
    site, request = make_site(tmp_path), Request("GET", "/api/events", {}, {"host": "localhost"})
    streams = []
    for _ in range(MOST_READERS):
        streams.append(await site(request))
        assert isinstance(streams[-1], Stream)
        await anext(streams[-1].pieces)
    refused = await site(request)
    assert isinstance(refused, Reply)
    assert refused.status == 503
    for each in streams:
        assert isinstance(each, Stream)
        await anext(each.pieces)
        await each.pieces.aclose()
    assert isinstance(await site(request), Stream)


def answer(tmp_path: Path, path: str, **query: str) -> Any:
    config = make_config(tmp_path, example(), f"--state-dir={tmp_path}")
    question = find_question(path, query)
    assert question is not None
    return question(look(config, programmed(config)))


def test_a_service_is_told_in_full(tmp_path: Path) -> None:
    said = answer(tmp_path, "/api/service", name="default/web")
    assert said["service"]["name"] == "web"
    assert said["rules"][0]["lines"]
    assert said["rules"][0]["drift"] == []
    assert said["changes"] == []
    with pytest.raises(ConfigError, match="no Service 'default/wab'"):
        answer(tmp_path, "/api/service", name="default/wab")


def test_a_difference_and_a_packet_are_those_of_the_commands(tmp_path: Path) -> None:
    assert answer(tmp_path, "/api/diff")["families"][0]["state"] == "as planned"
    explained = answer(tmp_path, "/api/explain", to="default/web", **{"from": "203.0.113.9"})
    assert (explained["outcome"], explained["service"]) == ("answered", "default/web:http")
    with pytest.raises(ConfigError, match="'none' is not a mode"):
        answer(tmp_path, "/api/explain", to="default/web", mode="none")


def test_a_row_sums_a_service_up(tmp_path: Path) -> None:
    config = make_config(tmp_path, example())
    seen = look(config, programmed(config))
    rows = {
        row["name"]: row
        for row in (build_row(build_service_document(seen, each)) for each in seen.store.services.values())
    }
    web = rows["default/web"]
    assert (web["endpoints"], web["used"], web["state"]) == (4, 2, "as planned")
    assert web["at"] == ["10.96.0.10:80/tcp", ":30080/tcp"]
    assert "10.244.1.11:8080" in web["to"]
    assert rows["default/empty"]["refused"].startswith("reject: ")


def test_the_token_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "view-token"
    token = read_token(path)
    assert len(token) == 48
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == token
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        read_token(path)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="user 65534 owns this file"):
        read_token(path)
    os.chown(path, 0, 0)
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="at least 16"):
        read_token(path)
