"""The objects of an archive, from the API server or from manifests. Secrets are never asked for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from vipwire.config.configuration import Config
from vipwire.errors import VipwireError
from vipwire.inspect.node.source import api_access
from vipwire.inspect.sysdump.redact import redact_object
from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError
from vipwire.kube.objects import ObjectClient

_CORE, _NETWORKING = "/api/v1", "/apis/networking.k8s.io/v1"
_GATEWAY, _EARLY = "/apis/gateway.networking.k8s.io/v1", "/apis/gateway.networking.k8s.io/v1alpha2"
KINDS: Final = {
    "Service": f"{_CORE}/services",
    "Node": f"{_CORE}/nodes",
    "Event": f"{_CORE}/events",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
    "ServiceCIDR": f"{_NETWORKING}/servicecidrs",
    "Ingress": f"{_NETWORKING}/ingresses",
    "IngressClass": f"{_NETWORKING}/ingressclasses",
    "Gateway": f"{_GATEWAY}/gateways",
    "GatewayClass": f"{_GATEWAY}/gatewayclasses",
    "HTTPRoute": f"{_GATEWAY}/httproutes",
    "GRPCRoute": f"{_GATEWAY}/grpcroutes",
    "TLSRoute": f"{_EARLY}/tlsroutes",
    "TCPRoute": f"{_EARLY}/tcproutes",
    "UDPRoute": f"{_EARLY}/udproutes",
}
"""The kinds and the paths of all their objects."""
_TIMEOUT: Final = 15.0
_ENDINGS: Final = (".yaml", ".yml", ".json")


def list_object_files(config: Config) -> Iterator[tuple[str, str]]:
    """Yield a file name and YAML for each kind. Raise VipwireError if the source cannot be read."""
    found = (
        _read_manifests(config.manifests) if config.manifests else asyncio.run(_list_from_server(api_access(config)))
    )
    for kind, items in found.items():
        yield f"objects/{kind.lower()}.yaml", yaml.safe_dump_all(map(redact_object, items), sort_keys=False)


async def _list_from_server(access: Access) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    async with ObjectClient(access, "vipwire-sysdump", timeout=_TIMEOUT) as client:
        for kind, path in KINDS.items():
            try:
                found[kind] = list(await client.list(path))
            except ApiError as error:
                if error.code != 404:
                    found[kind] = [{"error": f"{error.code} {error.message}"}]
    return found


def _read_manifests(names: tuple[str, ...]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name in names:
        path = Path(name)
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in _ENDINGS:
                for each in _read_documents(file):
                    found.setdefault(each["kind"], []).append(each)
    return found


def _read_documents(path: Path) -> Iterator[dict[str, Any]]:
    try:
        values = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise VipwireError(f"{path}: cannot be read: {error}") from error
    for value in values:
        items = value.get("items") if isinstance(value, dict) and value.get("kind", "").endswith("List") else [value]
        yield from (each for each in items or () if isinstance(each, dict) and each.get("kind") in KINDS)
