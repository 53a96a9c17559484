"""Validates names, labels and annotations, with Kubernetes' error messages.

A rule takes a value and returns its error, "" for none (apimachinery/pkg/util/validation).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from vipwire_up.api.objects.errors import Cause, invalid, too_long

NameRule: TypeAlias = Callable[[str], str]

_LABEL_TEXT: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL: Final = re.compile(_LABEL_TEXT)
_SUBDOMAIN: Final = re.compile(rf"{_LABEL_TEXT}(\.{_LABEL_TEXT})*")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_PORT: Final = re.compile("(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
CONTROLLER: Final = re.compile(rf"{_LABEL_TEXT}(\.{_LABEL_TEXT})*/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")
"""Controller names in classes: a domain and a path."""
_ANNOTATIONS_BYTES: Final = 256 << 10
_MOST_PORT: Final = 65535


def check_subdomain(value: str) -> str:
    """Most names: RFC 1123 subdomains of up to 253 characters."""
    if len(value) > 253:
        return "must be no more than 253 characters"
    if _SUBDOMAIN.fullmatch(value):
        return ""
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
        "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
        r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )


def check_label(value: str) -> str:
    """Names of Services, namespaces and containers: RFC 1123 labels of up to 63 characters."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    if _LABEL.fullmatch(value):
        return ""
    return (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
        "end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
        "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
    )


def check_wildcard(value: str) -> str:
    """Host names with a wildcard first label: *.example.com."""
    if len(value) > 253:
        return "must be no more than 253 characters"
    if value.startswith("*.") and _SUBDOMAIN.fullmatch(value[2:]):
        return ""
    return (
        "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist "
        "of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. "
        r"'*.example.com', regex used for validation is '\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?"
        r"(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )


def check_host(value: str) -> str:
    return check_wildcard(value) if "*" in value else check_subdomain(value)


def check_port_name(value: str) -> str:
    """Names of containers' ports: IANA service names (RFC 6335)."""
    if len(value) <= 15 and _PORT.fullmatch(value):
        return ""
    return (
        "must be 1 to 15 lower case alphanumeric characters or '-', contain at least one letter, and neither begin, "
        "end, nor double a '-'"
    )


def check_path_segment(value: str) -> str:
    bad = value in (".", "..") or "/" in value or "%" in value
    return "may not be '.' or '..', or contain '/' or '%'" if bad else ""


def check_qualified_name(value: str) -> str:
    """Keys of labels and annotations: a name, with a prefix or without."""
    prefix, slash, name = value.partition("/")
    if not slash:
        prefix, name = "", value
    if "/" in name:
        return (
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
            "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. "
            "'example.com/MyName')"
        )
    if slash and (not prefix or check_subdomain(prefix)):
        return "prefix part " + (check_subdomain(prefix) if prefix else "must be non-empty")
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    if _QUALIFIED.fullmatch(name):
        return ""
    return (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
        "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
        "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
    )


def check_label_value(value: str) -> str:
    if len(value) > 63:
        return "must be no more than 63 characters"
    if not value or _QUALIFIED.fullmatch(value):
        return ""
    return (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
        "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
        "validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
    )


def apply_name_rule(value: str | None, rule: NameRule, path: str) -> Iterator[Cause]:
    """Yield the rule's error about a value; None is valid."""
    if value and (problem := rule(value)):
        yield invalid(path, value, problem)


def check_labels(labels: Mapping[str, str], path: str) -> Iterator[Cause]:
    for key, value in labels.items():
        if problem := check_qualified_name(key):
            yield invalid(path, key, problem)
        if problem := check_label_value(value):
            yield invalid(path, value, problem)


def check_annotations(annotations: Mapping[str, str], path: str) -> Iterator[Cause]:
    for key in annotations:
        if problem := check_qualified_name(key.lower()):
            yield invalid(path, key, problem)
    if sum(len(key) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS_BYTES:
        yield too_long(path, _ANNOTATIONS_BYTES)


def check_port(port: Any, path: str) -> Iterator[Cause]:
    if isinstance(port, int) and not 0 < port <= _MOST_PORT:
        yield invalid(path, port, "must be between 1 and 65535, inclusive")
    elif isinstance(port, str) and (problem := check_port_name(port)):
        yield invalid(path, port, problem)
