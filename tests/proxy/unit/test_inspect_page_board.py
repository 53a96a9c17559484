"""What readers of the page are told: all at first, then what is different."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from vipwire.inspect.page import board as module
from vipwire.inspect.page.board import PIECE, Board, Notice


def row(name: str, state: str = "as planned") -> dict[str, Any]:
    return {"name": name, "state": state}


async def take(stream: AsyncGenerator[Notice | None, None], number: int) -> list[Notice | None]:
    async with asyncio.timeout(30):
        return [await anext(stream) for _ in range(number)]


async def test_a_reader_gets_all_and_then_what_changes() -> None:
    board = Board()
    board.put_rows([row("a"), row("b")])
    board.put_document("head", {"node": "n"})
    stream = board.follow()
    first = await take(stream, 2)
    rows = {"anew": True, "last": True, "changed": [row("a"), row("b")], "gone": []}
    assert first == [("head", {"node": "n"}), ("rows", rows)]
    board.put_rows([row("a"), row("c")])
    assert await take(stream, 1) == [("rows", {"anew": False, "last": True, "changed": [row("c")], "gone": ["b"]})]
    board.put_document("head", {"node": "n"})
    board.put_document("rates", 1)
    assert await take(stream, 1) == [("rates", 1)], "what is equal is no news"


async def test_many_rows_come_in_pieces_of_which_the_last_is_marked() -> None:
    board = Board()
    board.put_rows(row(f"{number:05}") for number in range(2 * PIECE + 1))
    pieces = [notice[1] for notice in await take(board.follow(), 3) if notice is not None]
    assert [len(piece["changed"]) for piece in pieces] == [PIECE, PIECE, 1]
    assert [(piece["anew"], piece["last"]) for piece in pieces] == [(True, False), (False, False), (False, True)]


async def test_a_reader_whose_last_look_is_forgotten_begins_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 2)

    board = Board()
    board.put_rows([row("a")])
    stream = board.follow()
    await take(stream, 1)
    for number in range(4):
        board.put_rows([row(f"{number}")])
    (told,) = await take(stream, 1)
    assert told == ("rows", {"anew": True, "last": True, "changed": [row("3")], "gone": []})


async def test_in_silence_a_reader_hears_that_it_is_still_there(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.01)

    assert await take(Board().follow(), 2) == [
        ("rows", {"anew": True, "last": True, "changed": [], "gone": []}),
        None,
    ]
