"""Warns of what is right in a Service and may not be meant (pkg/api/service/warnings.go). Pure."""

from collections.abc import Iterator
from typing import Final

from vipwire_up.api.kinds.rules.service import TOPOLOGY_HINTS, TOPOLOGY_MODE
from vipwire_up.api.objects.addresses import warn_of_address, warn_of_network
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.resource import Object

_OLD_WORDS: Final = {"PreferClose": "PreferSameZone"}


def warn_service(new: Object, _old: Object | None) -> Iterator[str]:
    """Tell what is ignored, deprecated or written in an unusual way."""
    spec = new["spec"]
    kind, headless = spec.get("type"), spec.get("type") == "ClusterIP" and spec.get("clusterIP") == "None"
    external = spec.get("externalIPs") or []
    if TOPOLOGY_HINTS in (at(new, "metadata", "annotations") or {}):
        yield f"annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
    if not headless:
        yield from warn_of_address("spec.clusterIPs", spec.get("clusterIPs") or ())
    else:
        yield from _ignored_by_headless(spec)
    yield from warn_of_address("spec.externalIPs", external)
    if external and not headless and kind != "ExternalName":
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    yield from warn_of_network("spec.loadBalancerSourceRanges", spec.get("loadBalancerSourceRanges") or ())
    if kind == "ExternalName" and external:
        yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    if kind != "ExternalName" and spec.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'
    wanted = spec.get("trafficDistribution")
    if wanted in _OLD_WORDS:
        yield f'spec.trafficDistribution: "{wanted}" is deprecated; use "{_OLD_WORDS[wanted]}"'


def _ignored_by_headless(spec: Object) -> Iterator[str]:
    for name in ("loadBalancerIP", "externalIPs"):
        if spec.get(name):
            yield f"spec.{name} is ignored for headless services"
    if spec.get("sessionAffinity") != "None":
        yield "spec.SessionAffinity is ignored for headless services"
