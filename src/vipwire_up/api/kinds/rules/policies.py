"""Validates our own policies, as their custom resource definitions do. Pure."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.errors import Cause, invalid, required
from vipwire_up.api.objects.resource import Object

MOST_TARGETS: Final = 16
MOST_SOURCES: Final = 256
_DURATION: Final = (re.compile(r"[1-9][0-9]{0,8}(ms|s|m|h|d)?"), "must be a duration such as 500ms or 30s")
PATTERNS: Final[Mapping[tuple[str, ...], tuple[re.Pattern[str], str]]] = {
    ("maxBodySize",): (re.compile(r"[0-9]{1,12}[kKmMgG]?"), "must be a number of bytes, or with k, m or g"),
    ("basicAuth", "secretName"): (re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"), "must be the name of a Secret"),
    ("basicAuth", "realm"): (re.compile(r"[ -&(-~]*"), "must be printable ASCII without '"),
    ("balance", "header"): (re.compile(r"[A-Za-z0-9_-]+"), "must be the name of a header"),
    ("healthCheck", "path"): (
        re.compile(r"/([A-Za-z0-9/._~!$&()*+,;=:@?-]|%[0-9A-Fa-f]{2})*"),
        "must be a path",
    ),
    ("healthCheck", "interval"): _DURATION,
    **{("timeouts", name): _DURATION for name in ("connect", "server", "queue", "tunnel")},
}
"""What a text must be, by the path of its field in `spec`."""
SERVICES: Final = (("", "Service"),)
ROUTES: Final = tuple(
    ("gateway.networking.k8s.io", kind) for kind in ("Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute")
)


def check_policy(new: Object, _old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a policy of either kind."""
    yield from _check_targets(at(new, "spec", "targetRefs") or (), new.get("kind"))
    for path, (pattern, message) in PATTERNS.items():
        text = at(new, "spec", *path)
        if text is not None and not pattern.fullmatch(text):
            yield invalid(".".join(("spec", *path)), text, message)
    for field in ("allowSources", "denySources"):
        found = at(new, "spec", field) or ()
        if len(found) > MOST_SOURCES:
            yield invalid(f"spec.{field}", len(found), f"must have at most {MOST_SOURCES} items")
        for index, text in enumerate(found):
            if not _is_source(text):
                yield invalid(f"spec.{field}[{index}]", text, "must be an address or a CIDR, such as 10.9.8.0/24")


def _check_targets(targets: Any, kind: Any) -> Iterator[Cause]:
    allowed = SERVICES if kind == "BackendPolicy" else ROUTES
    if not targets:
        yield required("spec.targetRefs")
    if len(targets) > MOST_TARGETS:
        yield invalid("spec.targetRefs", len(targets), f"must have at most {MOST_TARGETS} items")
    for index, each in enumerate(targets):
        if (each.get("group") or "", each.get("kind")) not in allowed:
            text = f"must be one of {', '.join(name for _, name in allowed)}"
            yield invalid(f"spec.targetRefs[{index}].kind", each.get("kind"), text)


def _is_source(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
