"""Text from objects, as commands, the log and Events print it: nothing in it moves a cursor or hides."""

import io
import json
import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from vipwire.config.sections import Logging
from vipwire.inspect.command import show
from vipwire.logging import log
from vipwire.model.text import escape_invisible, visible_lines
from vipwire.terminal.output import print_error

ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What a terminal acts on, or what hides; a line break is the only one of these that we print ourselves."""
texts = st.text(st.one_of(st.characters(), st.sampled_from("\x1b\x07\r\n\x9b\u202e\u200b")))
documents = st.recursive(texts | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner))


@given(texts)
def test_whatever_acts_is_an_escape_and_the_rest_stays(text: str) -> None:
    shown = escape_invisible(text)
    assert not ACTS.search(shown)
    assert "\n" not in shown
    assert escape_invisible(shown) == shown
    if shown == text:
        assert not ACTS.search(text)


@given(documents)
def test_a_document_is_safe_in_all_its_strings(document: Any) -> None:
    assert not ACTS.search(json.dumps(show.escape_document(document), ensure_ascii=False))


@given(documents)
def test_json_is_safe_and_says_what_the_object_says(document: Any) -> None:
    text = show.write_json(document)
    assert not ACTS.search(text)
    assert json.loads(text) == document


@given(texts)
def test_no_console_prints_what_acts(text: str) -> None:
    console = show.build_console(width=40)
    console.file = io.StringIO()
    console.print(Text(text), show.build_table(["a", "b"], [[text, Text(text)]]))
    assert not ACTS.search(console.file.getvalue())


@given(texts)
def test_no_log_line_has_what_acts(text: str) -> None:
    out = io.StringIO()
    log.configure(Logging(), stderr=out)
    try:
        log.warning(text, object=text)
        logging.getLogger("a.library").warning("%s", text)
    finally:
        log.configure(Logging())
    assert len(out.getvalue().splitlines()) == 2
    assert not ACTS.search(out.getvalue())


def test_an_error_of_several_lines_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("first\nsecond \x1b[2J")
    assert capsys.readouterr().err == "error: first\nerror: second \\u001b[2J\n"
    assert visible_lines("a\n\x1b") == "a\n\\u001b"
