"""The secrets that this process can see: in kubeconfigs, token files and the environment."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from vipwire.config.configuration import Config

_NAMES: Final = ("TOKEN", "PASSWORD", "SECRET", "KEY", "CREDENTIAL")
_HELD: Final = ("token", "password", "client-key-data")
_MOST: Final = 1 << 20


def find_secrets(config: Config, data_dirs: tuple[Path, ...]) -> frozenset[str]:
    return frozenset(each.strip() for each in _find_secrets(config, data_dirs) if each.strip())


def _find_secrets(config: Config, data_dirs: tuple[Path, ...]) -> Iterator[str]:
    for name, value in os.environ.items():
        if any(word in name.upper() for word in _NAMES):
            yield value
    paths = [Path(config.state_dir) / "view-token", *(each / "tokens.csv" for each in data_dirs)]
    for path in paths:
        yield from _read(path).replace(",", "\n").splitlines()
    given = [config.client_connection.kubeconfig, *os.environ.get("KUBECONFIG", "").split(":")]
    configs = [Path(each) for each in given if each]
    configs += [found for folder in data_dirs for found in sorted(folder.glob("*.kubeconfig"))]
    for path in configs:
        with contextlib.suppress(yaml.YAMLError):
            yield from _of_users(yaml.safe_load(_read(path)))


def _of_users(value: Any) -> Iterator[str]:
    users = value.get("users") if isinstance(value, dict) else None
    for each in users if isinstance(users, list) else ():
        user = each.get("user") if isinstance(each, dict) else None
        held = user if isinstance(user, dict) else {}
        yield from (held[name] for name in _HELD if isinstance(held.get(name), str))


def _read(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST)
    return ""
