"""Logging: one line per record, `key=value` or JSON, with kube-proxy's levels.

    log.info("synced", ip_family="IPv4", services=3, seconds=0.0012)
    log.detail(4, "endpoint changed", service="ns/name:http")

kube-proxy's `-v=N` shows every record of verbosity N and less; `--vmodule=file=N` changes N for source files with a
matching name. On Python's scale verbosity N is level 20 - N: INFO is verbosity 0 and DEBUG is verbosity 10. Records
of libraries are shown from WARNING, from INFO at -v=5, all at -v=10.
"""

import fnmatch
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from vipwire.config.kinds import ModuleVerbosity
from vipwire.config.sections import Logging
from vipwire.model.text import escape_invisible

_OURS: Final = logging.getLogger("vipwire")
_ROOT: Final = logging.getLogger()
_COLOURS: Final = {"error": "\x1b[31m", "warning": "\x1b[33m", "info": "\x1b[32m", "debug": "\x1b[2m"}
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,@+%[]()*#;<>~^!?|'&$")
_CALLER: Final = 2
_JSON: Final = frozenset((str, bool, int, float, list, tuple, dict, type(None)))


def error(message: str, /, **fields: object) -> None:
    """Log a failure that needs an operator's attention."""
    _emit_record(logging.ERROR, message, fields)


def warning(message: str, /, **fields: object) -> None:
    """Log a probable mistake."""
    _emit_record(logging.WARNING, message, fields)


def info(message: str, /, **fields: object) -> None:
    """Log an event that operators see by default."""
    _emit_record(logging.INFO, message, fields)


def detail(verbosity: int, message: str, /, **fields: object) -> None:
    """Log an event for `-v=verbosity` (1 to 10) and higher."""
    _emit_record(logging.INFO - min(verbosity, 10), message, fields)


def enabled(verbosity: int) -> bool:
    """Report whether records of a verbosity may be shown; ask before computing a costly field."""
    return _OURS.isEnabledFor(logging.INFO - min(verbosity, 10))


def _emit_record(level: int, message: str, fields: Mapping[str, object]) -> None:
    if not _OURS.isEnabledFor(level) or (level >= logging.INFO and _write_line(level, message, fields)):
        return
    frame = sys._getframe(_CALLER)  # noqa: SLF001  # as logging finds it, without a look at each frame
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    record = logging.LogRecord(_OURS.name, level, file, frame.f_lineno, message, None, None, function)
    record.fields = fields
    _OURS.handle(record)


def _write_line(level: int, message: str, fields: Mapping[str, object]) -> bool:
    """Write a line without a `LogRecord` if only our handler would get it: in a third of the time."""
    handlers = _ROOT.handlers
    if len(handlers) != 1 or _OURS.handlers or type(only := handlers[0]) is not _Handler:
        return False
    return only.write(level, message, fields)


def configure(settings: Logging, *, stderr: TextIO | None = None, stdout: TextIO | None = None) -> None:
    """Send all records to stderr (with a split stream, all but errors to stdout) in the configured format.

    Replaces an earlier configuration.
    """
    # These fields are not shown, and Python would compute them for every record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    errors, others = stderr or sys.stderr, stdout or sys.stdout
    output = settings.options.json if settings.format == "json" else settings.options.text
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
        handler.close()
    verbosity = _Verbosity(settings.vmodule)
    if output.split_stream:
        root.addHandler(_Handler(others, settings, verbosity, below=logging.ERROR))
        root.addHandler(_Handler(errors, settings, verbosity, at_least=logging.ERROR))
    else:
        root.addHandler(_Handler(errors, settings, verbosity))
    set_verbosity(settings.verbosity)


def set_verbosity(verbosity: int) -> None:
    filters = {each for handler in _ROOT.handlers for each in handler.filters if isinstance(each, _Verbosity)}
    for each in filters:
        each.general = verbosity
    most = max([verbosity, *(item.verbosity for each in filters for item in each.modules)])
    _OURS.setLevel(logging.INFO - min(most, 10))
    levels = ((10, logging.DEBUG), (5, logging.INFO), (0, logging.WARNING))
    logging.getLogger().setLevel(next(level for least, level in levels if verbosity >= least))


class _Verbosity(logging.Filter):
    """Decides by a record's source file whether to show its verbosity."""

    def __init__(self, modules: tuple[ModuleVerbosity, ...]) -> None:
        super().__init__()
        self.general = 0
        self.modules = modules

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.INFO or not record.name.startswith("vipwire"):
            return True
        return logging.INFO - record.levelno <= self._find_verbosity(record)

    def _find_verbosity(self, record: logging.LogRecord) -> int:
        path = record.pathname.removesuffix(".py")
        for item in self.modules:
            name = path if "/" in item.file_pattern else record.module
            if fnmatch.fnmatchcase(name, item.file_pattern):
                return item.verbosity
        return self.general


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(
        self, stream: TextIO, settings: Logging, verbosity: _Verbosity, *, at_least: int = 0, below: int = 1000
    ) -> None:
        super().__init__(stream)
        self.addFilter(verbosity)
        self.addFilter(lambda record: at_least <= record.levelno < below)
        colour = stream.isatty() and not os.environ.get("NO_COLOR")
        self.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter(colour=colour))
        self._line = TextFormatter(colour=colour).line if settings.format == "text" and not at_least else None
        self._below = below

    def write(self, level: int, message: str, fields: Mapping[str, object]) -> bool:
        """Write a line now if the formatter can; return False if nothing was written."""
        if self._line is None or level >= self._below or self.lock is None:
            return False
        try:
            line = self._line(time.time(), _name_level(level), message, fields)
            with self.lock:
                self.stream.write(f"{line}\n")
                self.stream.flush()
        except Exception:  # noqa: BLE001  # logging reports the error
            self.handleError(logging.makeLogRecord({"msg": message, "levelno": level}))
        return True


class TextFormatter(logging.Formatter):
    """`ts=… level=… msg=… key=value …`: values with blanks or quotes are JSON strings, so a record is one line."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        return self.line(record.created, _name_level(record.levelno), record.getMessage(), _collect_fields(record))

    def line(self, created: float, level: str, message: str, fields: Mapping[str, object]) -> str:
        when = datetime.fromtimestamp(created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        shown = f"{_COLOURS[level]}{level}\x1b[0m" if self._colour else level
        pairs = [f"{name}={value if type(value) is int else _format_value(value)}" for name, value in fields.items()]
        return " ".join([f"ts={when}", f"level={shown}", f"msg={_format_value(message)}", *pairs])


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the keys of Kubernetes' components: ts (milliseconds), v, msg, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"ts": round(record.created * 1000, 3), "level": _name_level(record.levelno)}
        if record.levelno <= logging.INFO:
            line["v"] = logging.INFO - record.levelno
        line["msg"] = record.getMessage()
        fields = {name: _convert_to_text(value) for name, value in _collect_fields(record).items()}
        return json.dumps({**line, **fields, **line}, default=str)


def _name_level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def _collect_fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = dict(getattr(record, "fields", {}))
    if record.name != "vipwire":
        fields["logger"] = record.name
    if record.exc_info:
        fields["stack"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _convert_to_text(value: Any) -> Any:
    """Convert a value to text: a name that is a tuple underneath would become a list."""
    return value if type(value) in _JSON else str(value)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and _PLAIN.issuperset(text) else escape_invisible(json.dumps(text, ensure_ascii=False))


EVERY_SECONDS: Final = 60.0


class RateLimitedLog:
    """Logs a message the first time, then at most once a minute, with the number of times left out.

    For errors that other machines can cause at any rate, so that they do not fill the disk.
    """

    def __init__(self, every: float = EVERY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def due(self, message: str) -> bool:
        """Report whether a message may be logged now; count it if not."""
        now, last = self._clock(), self._last.get(message)
        if last is not None and now - last < self._every:
            self._left_out[message] = self._left_out.get(message, 0) + 1
            return False
        self._last[message] = now
        return True

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a warning, unless the same message was logged within a minute. Messages are constants."""
        if self.due(message):
            left_out = self._left_out.pop(message, 0)
            _emit_record(logging.WARNING, message, fields | ({"left_out": left_out} if left_out else {}))
