"""Finds the secrets that this process can see, and leaves secrets out of text and of objects.

Three nets: names that hold secrets (`password`, `token`, …), forms of secrets (PEM keys, bearer and bootstrap tokens,
long random words), and the secrets of this machine, wherever they stand.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from vipwire.config.configuration import Config

LEFT_OUT: Final = "<left out>"
_WORD: Final = (
    r"(?:password|passwd|passphrase|token|secret|api[_-]?key|access[_-]?key|private[_-]?key|key[_-]data|"
    r"cookie[_-]?key|credential|authorization|auth[_-]?pass)[\w-]{0,64}"
)
"""A name that holds a secret, from its telling word on. Bounded, so that no text takes long to search."""
_NAMED: Final = re.compile(_WORD, re.IGNORECASE)
_NOT_SECRET: Final = re.compile(
    r"(?:token|key|password|secret|credential)s?[_-]?(?:file|name|ref|refs|path)$|secretnames?$", re.IGNORECASE
)
_FORMS: Final = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), LEFT_OUT),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {LEFT_OUT}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w.-]+"), LEFT_OUT),
    (re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"), LEFT_OUT),
    (re.compile(r"(://)[^\s/@\"']+@"), rf"\1{LEFT_OUT}@"),
    (re.compile(r"\b(insecure-password|password|dynamic-cookie-key)\s+[^\s\"']+"), rf"\1 {LEFT_OUT}"),
    (re.compile(r"\b[0-9a-fA-F]{32,}\b"), LEFT_OUT),
    (
        re.compile(r"(?<![\w/.-])(?=[\w+-]{0,99}[0-9])(?=[\w+-]{0,99}[A-Z])(?=[\w+-]{0,99}[a-z])[\w+-]{40,}={0,2}"),
        LEFT_OUT,
    ),
)
_VALUE: Final = r"(?P<quote>\\?[\"']?)(?P<value>(?<=[\"'])[^\"'\\]*|(?<![\"'])[^\s,;\"'}\]\\]+)"
_QUOTE: Final = r"(?:\\?[\"'])?"
_PAIRS: Final = (
    re.compile(rf"(?P<name>(?P<word>{_WORD}){_QUOTE})(?P<sep>\s*[=:]\s*){_VALUE}", re.IGNORECASE),
    re.compile(rf"(?P<name>(?<![\w-])--[\w-]{{0,64}}?(?P<word>{_WORD}))(?P<sep>\s+)(?!-){_VALUE}", re.IGNORECASE),
)
_KEPT_ANNOTATIONS: Final = ("vipwire.io/", "kube-router.io/", "service.kubernetes.io/", "endpoints.kubernetes.io/")
_SHORTEST: Final = 6


def redact_text(text: str, known: Iterable[str] = ()) -> str:
    """Replace every `known` secret, and every text in the form of a secret."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, LEFT_OUT)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    for pair in _PAIRS:
        text = pair.sub(_redact_pair, text)
    return text


def _redact_pair(found: re.Match[str]) -> str:
    if _NOT_SECRET.search(found["word"]):
        return found[0]
    return f"{found['name']}{found['sep']}{found['quote']}{LEFT_OUT}"


def redact_object(value: Any) -> Any:
    """Leave secrets out of an object: values with such names, of headers and variables, and of other annotations."""
    if isinstance(value, list):
        return [redact_object(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) >= {"name", "value"}:
        return {name: LEFT_OUT if name == "value" else redact_object(each) for name, each in value.items()}
    return {name: _redact_field(name, each) for name, each in value.items() if name != "managedFields"}


def _redact_field(name: str, value: Any) -> Any:
    if name == "annotations" and isinstance(value, dict):
        return {key: text if key.startswith(_KEPT_ANNOTATIONS) else LEFT_OUT for key, text in value.items()}
    if isinstance(value, str) and _NAMED.search(name) and not _NOT_SECRET.search(name):
        return LEFT_OUT
    return redact_object(value)


_NAMES: Final = ("TOKEN", "PASSWORD", "SECRET", "KEY", "CREDENTIAL")
_HELD: Final = ("token", "password", "client-key-data")
_MOST: Final = 1 << 20


def find_secrets(config: Config, data_dirs: tuple[Path, ...]) -> frozenset[str]:
    """Find the secrets in kubeconfigs, token files and the environment."""
    return frozenset(each.strip() for each in _find_secrets(config, data_dirs) if each.strip())


def _find_secrets(config: Config, data_dirs: tuple[Path, ...]) -> Iterator[str]:
    for name, value in os.environ.items():
        if any(word in name.upper() for word in _NAMES):
            yield value
    paths = [Path(config.state_dir) / "view-token", *(each / "tokens.csv" for each in data_dirs)]
    for path in paths:
        yield from _read_file(path).replace(",", "\n").splitlines()
    given = [config.client_connection.kubeconfig, *os.environ.get("KUBECONFIG", "").split(":")]
    configs = [Path(each) for each in given if each]
    configs += [found for folder in data_dirs for found in sorted(folder.glob("*.kubeconfig"))]
    for path in configs:
        with contextlib.suppress(yaml.YAMLError):
            yield from _find_user_secrets(yaml.safe_load(_read_file(path)))


def _find_user_secrets(value: Any) -> Iterator[str]:
    users = value.get("users") if isinstance(value, dict) else None
    for each in users if isinstance(users, list) else ():
        user = each.get("user") if isinstance(each, dict) else None
        held = user if isinstance(user, dict) else {}
        yield from (held[name] for name in _HELD if isinstance(held.get(name), str))


def _read_file(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST)
    return ""
