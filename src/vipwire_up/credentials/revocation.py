"""Reads the file `revoked`: certificates and users that are refused although their credentials are valid.

    serial 5D3A91        a certificate, by its serial number in hexadecimal digits (openssl x509 -noout -serial)
    user viewer          all credentials of this user name
    # a comment

vipwire replaces its own revoked certificates with ones of another key, and rewrites their kubeconfigs.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vipwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Revoked:
    """The revoked certificates and users."""

    serials: frozenset[int] = frozenset()
    users: frozenset[str] = frozenset()


NOBODY: Final = Revoked()
_SERIAL: Final = re.compile(r"[0-9A-Fa-f:]{1,60}")


def load_revoked(path: Path) -> Revoked:
    """Read the file, which may be missing. Raise ConfigError that names the line."""
    try:
        return parse_revoked(path, path.read_bytes())
    except FileNotFoundError:
        return NOBODY
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def parse_revoked(path: Path, content: bytes) -> Revoked:
    serials, users = set[int](), set[str]()
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        word, _, value = line.strip().partition(" ")
        value = value.strip()
        if word == "user" and value:
            users.add(value)
        elif word == "serial" and _SERIAL.fullmatch(value):
            serials.add(int(value.replace(":", ""), 16))
        elif word and not word.startswith("#"):
            raise ConfigError(f"{path}: line {number}: expected `serial HEX` or `user NAME`")
    return Revoked(frozenset(serials), frozenset(users))
