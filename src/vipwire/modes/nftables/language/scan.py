"""Splits the text of a rule into words; reports the position of an error."""

import re
from typing import NoReturn

_WORD = re.compile(r'"[^"]*"|[{}]|[^\s{}"]+')
_SECONDS = re.compile(r"(\d+)s", re.ASCII)


class RuleSyntaxError(ValueError):
    """Rule text outside of the subset. `position` counts characters from 0."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(f"{message}, at character {position + 1} of {text!r}")
        self.text = text
        self.position = position


class Scanner:
    """The words of one text, from left to right. Quoted words keep their quotes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._words: list[str] = _WORD.findall(text)
        self._at = 0
        if '"' in text and _WORD.sub("", text).strip():
            raise RuleSyntaxError("a quote is not closed", text, text.index('"'))

    def __bool__(self) -> bool:
        return self._at < len(self._words)

    def __contains__(self, word: str) -> bool:
        return word in self._words[self._at :]

    def peek(self, ahead: int = 0) -> str:
        """Return the next word without consuming it; "" at the end."""
        at = self._at + ahead
        return self._words[at] if at < len(self._words) else ""

    def ahead(self, count: int) -> tuple[str, ...]:
        """Return the next `count` words without consuming them; fewer at the end."""
        return tuple(self._words[self._at : self._at + count])

    def take(self, wanted: str = "a word") -> str:
        """Consume and return the next word; `wanted` describes it in the error."""
        if not self:
            self.fail(f"expected {wanted}")
        self._at += 1
        return self._words[self._at - 1]

    def skip(self, *words: str) -> bool:
        """Consume these words if all of them come next; report whether they did."""
        at = self._at
        if self._words[at : at + len(words)] != [*words]:
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Consume these words; raise RuleSyntaxError if they do not come next."""
        if not self.skip(*words):
            self.fail(f"expected {' '.join(words)!r}")

    def number(self, highest: int = 0xFFFFFFFF) -> int:
        """Consume a number, decimal or 0x…."""
        word = self.take("a number")
        try:
            value = int(word, 16 if word.startswith("0x") else 10)
        except ValueError:
            self.fail_before(f"{word!r} is not a number")
        if not 0 <= value <= highest:
            self.fail_before(f"{word} is not between 0 and {highest}")
        return value

    def seconds(self) -> int:
        """Consume a time such as 10s; return seconds."""
        word = self.take("a time in seconds")
        match = _SECONDS.fullmatch(word)
        if match is None:
            self.fail_before(f"{word!r} is not a time such as 10s")
        return int(match[1])

    def read_quoted(self) -> str:
        """Consume a quoted word; return it without quotes."""
        word = self.take("a quoted word")
        if not word.startswith('"'):
            self.fail_before("expected a word in quotes")
        return word[1:-1]

    def reference(self) -> str:
        word = self.take("@ and a set's name")
        if len(word) < 2 or not word.startswith("@"):
            self.fail_before("expected @ and a set's name")
        return word[1:]

    def fail(self, message: str) -> NoReturn:
        """Raise RuleSyntaxError at the next word."""
        raise RuleSyntaxError(message, self.text, self._position(self._at))

    def fail_before(self, message: str) -> NoReturn:
        """Raise RuleSyntaxError at the last consumed word."""
        raise RuleSyntaxError(message, self.text, self._position(self._at - 1))

    def _position(self, index: int) -> int:
        """Return the position of a word; the text's length for the index behind the last word."""
        return [*(match.start() for match in _WORD.finditer(self.text)), len(self.text)][index]
