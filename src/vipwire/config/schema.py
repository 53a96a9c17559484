"""A row of the configuration: one field with its flag, default, check and meaning.

The rows drive the reader and the writer of the file, the flags, `--help` and the documentation, validation, and the
reload of a changed file.

In a field that is not a pointer in Go, the zero value (`0s`, `0`, `""`) means the default, as ConfigMaps of kubeadm
have it; in a pointer field only `null` does.
"""

import enum
import re
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from vipwire.config.kinds import ValueKind
from vipwire.model.net import Prefix, parse_address
from vipwire.model.text import port_number
from vipwire.model.value import Value

Check = Callable[[Any], Iterable[str]]
PRIMARY: Final = "primary"
"""The word in `nodePortAddresses` for the Node's own primary addresses."""


def check_value(allowed: Callable[[Any], bool], message: str) -> Check:
    """Make a check that yields `message` if a value is not allowed."""
    return lambda value: () if allowed(value) else (message,)


def check_range(least: int, most: int) -> Check:
    return check_value(lambda value: least <= value <= most, f"must be within the range [{least}, {most}]")


class OneOf(Value, frozen=True):
    """The check of a word: one of `words`, or blank if `blank`."""

    words: Callable[[], tuple[str, ...]]
    message: str = "must be {}"
    blank: bool = False

    def __call__(self, value: str) -> Iterable[str]:
        allowed = self.words()
        if value not in allowed and (value or not self.blank):
            yield self.message.format(", ".join(allowed))


def check_readable(read: Callable[[str], object], text: str) -> bool:
    """Report whether `read` accepts a text without a ValueError."""
    try:
        read(text)
    except ValueError:
        return False
    return True


def check_cidr(text: str) -> Iterator[str]:
    if not check_readable(Prefix.parse, text):
        yield "must be a valid CIDR such as 10.0.0.0/8 or fd00::/64"


def check_cidr_or_primary(text: str) -> Iterable[str]:
    return () if text == PRIMARY else check_cidr(text)


def check_host_port(text: str) -> Iterator[str]:
    """Check the address of a server; empty disables the server."""
    match = re.fullmatch(r"\[(?P<v6>[^\]]*)\]:(?P<port6>.*)|(?P<v4>[^:]*):(?P<port4>[^:]*)", text)
    if text and match is None:
        yield "must be IP:port ([IP]:port for IPv6)"
    if not text or match is None:
        return
    host, port = match["v6"] or match["v4"] or "", match["port6"] or match["port4"] or ""
    if not check_readable(parse_address, host):
        yield f"{host!r} must be a valid IP"
    if port_number(port) is None:
        yield f"{port!r} must be a valid port, 1 to 65535"


def parse_port_range(text: str) -> range | None:
    """Parse `begin-end` (both inclusive), `begin+size` or one port; empty and `0-0` give an empty range: any port.

    None for other text. Source: apimachinery's ParsePortRange.
    """
    match = re.fullmatch(r"\s*(\d{1,5})(?:([-+])(\d{1,5}))?\s*", text, re.ASCII) if text.strip() else None
    if match is None:
        return None if text.strip() else range(0)
    first, last = int(match[1]), int(match[3] or match[1])
    if match[2] == "+":
        last += first
    if not first <= last <= 65535:
        return None
    return range(first, last + 1) if last else range(0)


def check_version(text: str) -> Iterator[str]:
    if text and not re.fullmatch(r"\d+\.\d+", text):
        yield "must be omitted or be <major>.<minor>"


AT_LEAST_0: Final = check_value(lambda value: value >= 0, "must be greater than or equal to 0")
ABOVE_0: Final = check_value(lambda value: value > 0, "must be greater than 0")


class Applied(enum.Enum):
    """When a changed value in the file takes effect; the value is the word of the documentation."""

    LIVE = "live"
    RESTART = "restart"
    NEVER = "no effect"


class Group(enum.Enum):
    """The sections of `--help`, in order; the value is the heading."""

    SOURCE = "Source of Services"
    FILE = "Configuration file"
    MODE = "Modes"
    IPVS = "ipvs mode"
    USERSPACE = "userspace mode"
    EBPF = "ebpf mode"
    TRAFFIC = "Addresses and local traffic"
    CONNTRACK = "Connection tracking"
    SERVERS = "Health, metrics and debugging"
    PROCESS = "This process"
    LOGGING = "Logging"
    OLD = "Accepted for compatibility"


_KIND_OF: Final = {
    str: ValueKind.STRING,
    bool: ValueKind.BOOL,
    int: ValueKind.INT,
    float: ValueKind.DURATION,
    tuple: ValueKind.STRINGS,
}


class Setting(Value, frozen=True):
    """One row.

    `name` and `text` are the flag and its meaning, in the section `group` of `--help`; "" for a field without a flag.
    A `*` in them stands for the name of the section. The kind is that of the default, for a float a duration, unless
    `read_as` is another. `check` says what is allowed (of a list: for each item).

    `file_name` is the field's name in the file, if it is not the attribute's in camel case. `in_file` is false for
    fields that only flags set, `written` for fields that are written only if they differ from the default. `pointer`:
    the field is a pointer in Go. `applied` says when a change takes effect, by default after a restart. `mode` names
    the only mode that reads the field.

    Of the flag: `beside_file` flags count beside a `--config` file although the file has the field. `repeats` flags
    take one value each time. `path_of_file` flags name a file. `own` flags concern one process and are not passed to
    others. `first` flags precede the others of their group. `warning` is printed whenever the flag is used. `short`
    is its short name.

    `path` is the dotted path in the file's names, `attribute` the one in Python's. `paths` are the paths of all
    fields that the flag sets; empty if the flag sets none.
    """

    name: str = ""
    text: str = ""
    default: Any = False
    group: Group = Group.OLD
    read_as: ValueKind | None = None
    check: Check | None = None
    file_name: str = ""
    applied: Applied = Applied.RESTART
    pointer: bool = False
    in_file: bool = True
    written: bool = True
    mode: str = ""
    beside_file: bool = False
    repeats: bool = False
    path_of_file: bool = False
    own: bool = False
    first: bool = False
    warning: str = ""
    short: str = ""
    path: str = ""
    attribute: str = ""
    paths: tuple[str, ...] = ()

    @property
    def kind(self) -> ValueKind:
        return self.read_as or _KIND_OF.get(type(self.default), ValueKind.SECTION)

    @property
    def with_config(self) -> bool:
        """Whether the flag counts beside a `--config` file, which overrides all others, as in kube-proxy."""
        return self.beside_file or not self.in_file

    @property
    def help(self) -> str:
        return self.text or f"{self.warning[:1].upper()}{self.warning[1:]}."

    def value(self, config: Any) -> Any:
        return attrgetter(self.attribute)(config)


_P = ParamSpec("_P")


def _declaring(row: Callable[_P, Setting]) -> Callable[_P, Any]:
    return row


setting: Final = _declaring(Setting)
"""Declares a section's field: gives the Setting in place of a default, typed Any for the field's own type."""


class _SectionMeta(msgspec.StructMeta):
    """Makes a section: its rows are in `settings`, by attribute. A subclass may change a default."""

    settings: dict[str, Setting]

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "_SectionMeta":
        rows = {key: row for base in bases if isinstance(base, cls) for key, row in base.settings.items()}
        for key, said in namespace.items():
            if isinstance(said, Setting):
                rows[key] = said
            elif key in rows:
                rows[key] = msgspec.structs.replace(rows[key], default=said)
        defaults = {
            key: msgspec.field(default=row.default, name=row.file_name or None)
            for key, row in rows.items()
            if key in namespace
        }
        made = super().__new__(cls, name, bases, {**namespace, **defaults}, **options)
        names = dict(zip(made.__struct_fields__, made.__struct_encode_fields__, strict=True))
        made.settings = {
            key: msgspec.structs.replace(row, path=names[key] if row.in_file else key, attribute=key)
            for key, row in ((key, rows[key]) for key in names if key in rows)
        }
        return made


class Section(Value, frozen=True, rename="camel", metaclass=_SectionMeta):
    """The base of the configuration's sections: values whose fields `setting` declares."""


_S = TypeVar("_S", bound=Section)


def list_settings(kind: type[Section], above: Setting | None = None) -> Iterator[Setting]:
    """Yield every row below a section, without the sections themselves, with its path from there."""
    for row in kind.settings.values():
        found = row if above is None else _place_below(above, row)
        if row.kind is ValueKind.SECTION:
            yield from list_settings(type(row.default), found)
        else:
            yield found


def _place_below(above: Setting, row: Setting) -> Setting:
    section = above.path.rpartition(".")[2]
    named = (
        {"name": row.name.replace("*", section), "text": row.text.replace("*", section)} if "*" in row.name else {}
    )
    return msgspec.structs.replace(
        row,
        path=f"{above.path}.{row.path}",
        attribute=f"{above.attribute}.{row.attribute}",
        group=above.group if row.group is Group.OLD else row.group,
        **named,
    )


def replace_at(section: _S, attribute: str, value: object) -> _S:
    """Return a section with another value of a field, which may belong to a nested section."""
    name, _, rest = attribute.partition(".")
    inner = replace_at(getattr(section, name), rest, value) if rest else value
    return msgspec.structs.replace(section, **{name: inner})
