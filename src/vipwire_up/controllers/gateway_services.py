"""Makes a LoadBalancer Service for each Gateway, which gives the Gateway an announced address of the ranges.

The controller serves Gateways of `vipwire gateway`'s classes that name no address, or one within the ranges. The
Service is called GATEWAY-CLASS (GEP-1762) and owned by its Gateway. Its address has ipMode Proxy, so no proxy
translates it: HAProxy listens there itself. The address is the only endpoint of the Service's ClusterIP.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire.kube.gateway_addresses import (
    CONTROLLER,
    GATEWAY,
    POOL,
    is_created_by_deployment,
    name_label,
    service_name,
)
from vipwire_up.announcing.balanced import has_right_ip_mode, status_addresses
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.endpoints import ENDPOINT_SLICES
from vipwire_up.api.kinds.gateway import GATEWAY_CLASSES, GATEWAY_RESOURCES
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.small_kinds import CONFIG_MAPS
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.object import decode_record, key_of, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.pool import Pool
from vipwire_up.controllers.allocation.ranges import Network
from vipwire_up.controllers.endpoints.selection import Name
from vipwire_up.controllers.endpoints.slices import MANAGED_BY, SERVICE
from vipwire_up.store.record import Key
from vipwire_up.store_watch.events import write_warning_event
from vipwire_up.store_watch.feed import RETRY_SECONDS, Feed
from vipwire_up.watchdog.guard import Guard

GATEWAYS: Final = next(each for each in GATEWAY_RESOURCES if each.kind == "Gateway")
_MANAGER: Final = "vipwire-gateway-addresses"
_OPTIONS: Final = Options(manager=_MANAGER, validation="Ignore", force=True)
_PROXY: Final = "service.kubernetes.io/service-proxy-name"
_ANNOUNCING: Final = "announce.vipwire.io/"


class GatewayServices:
    """Follows the Gateways of a registry. `networks` are the ranges of LoadBalancer addresses."""

    def __init__(self, registry: Registry, networks: Sequence[Network], guard: Guard[Key] | None = None) -> None:
        self._registry, self._pool, self._guard = registry, Pool(networks), guard or Guard("Gateways' Services")
        self._feed = Feed(registry.store, (GATEWAY_CLASSES, GATEWAYS, SERVICES))
        self._told: dict[Name, str] = {}
        self._left: dict[Name, None] = {}

    async def run(self) -> None:
        await self._feed.run(self.step, self._guard)

    async def step(self) -> float | None:
        """Update the Services of changed Gateways; return the seconds until the next call."""
        changes, anew = self._feed.read_changes()
        names = dict(self._left) | dict.fromkeys((key.namespace, key.name) for key in self._guard.due())
        for change in changes:
            key = change.record.key
            if anew or key.resource == GATEWAY_CLASSES.id:
                names |= dict.fromkeys(self._list_gateways())
            elif key.resource == GATEWAYS.id:
                names[key.namespace, key.name] = None
            elif about := value_at(decode_record(change.record), "metadata", "annotations", GATEWAY):
                names[key.namespace, about] = None
        self._left = {}
        for name in names:
            with self._guard.of(key_of(GATEWAYS, *name)):
                await self._reconcile_gateway(name)
        return RETRY_SECONDS if self._left else self._guard.seconds_left()

    def _list_gateways(self) -> Iterator[Name]:
        for record in self._registry.store.scan(GATEWAYS.id):
            yield record.key.namespace, record.key.name

    async def _reconcile_gateway(self, name: Name) -> None:
        gateway = self._registry.find(GATEWAYS, *name)
        if gateway is None:  # garbage collection deletes its Service
            self._told.pop(name, None)
            return
        service = service_name(name[1], value_at(gateway, "spec", "gatewayClassName") or "")
        there, problem = self._registry.find(SERVICES, name[0], service), ""
        try:
            if not self._wants_service(gateway):
                if there is not None and _belongs_to(there, gateway):
                    await self._registry.delete(SERVICES, name[0], service, options=_OPTIONS)
            elif there is None:
                await self._registry.create(SERVICES, name[0], build_wanted_service(gateway), _OPTIONS)
            elif not _belongs_to(there, gateway):
                problem = f"Service {service} belongs to another owner: the Gateway has no address"
            else:
                if needs_change(there, wanted := build_wanted_service(gateway, there)):
                    await self._registry.change(
                        SERVICES, name[0], service, lambda old: merge_service(old, wanted), _OPTIONS
                    )
                await self._write_status_addresses(gateway, there)
        except ApiError as error:
            if error.code not in (403, 404, 409, 422):
                self._left[name] = None
            problem = error.message if error.code in (403, 422) else ""
        await self._report_problem(gateway, problem)

    async def _write_status_addresses(self, gateway: Object, service: Object) -> None:
        namespace = service["metadata"]["namespace"]
        for family in ("IPv4", "IPv6"):
            name = f"{service['metadata']['name']}-{family.lower()}"
            found = self._registry.find(ENDPOINT_SLICES, namespace, name)
            addresses = [each for each in status_addresses(service) if family_of(each) == family]
            told = [{"addresses": [each]} for each in addresses if not ipaddress.ip_address(each).is_loopback]
            ports = [{key: each[key] for key in ("name", "port", "protocol")} for each in service["spec"]["ports"]]
            if not told:
                if found is not None and found["metadata"].get("labels", {}).get(MANAGED_BY) == _MANAGER:
                    await self._registry.delete(ENDPOINT_SLICES, namespace, name, options=_OPTIONS)
                continue
            there = found or {}
            known = [{"addresses": each["addresses"]} for each in there.get("endpoints") or ()]
            if (known, there.get("ports")) != (told, ports):
                labels = {SERVICE: service["metadata"]["name"], MANAGED_BY: _MANAGER}
                meta = {"name": name, "labels": labels, "ownerReferences": [_owner_reference(gateway)]}
                body = {"metadata": meta, "addressType": family, "endpoints": told, "ports": ports}
                await self._registry.apply(ENDPOINT_SLICES, namespace, name, body, _OPTIONS)

    def _wants_service(self, gateway: Object) -> bool:
        named = self._registry.find(GATEWAY_CLASSES, "", value_at(gateway, "spec", "gatewayClassName") or "")
        if value_at(named, "spec", "controllerName") != CONTROLLER:
            return False
        asked = value_at(gateway, "spec", "addresses") or ()
        if any(each.get("type", "IPAddress") != "IPAddress" for each in asked):
            return False
        values = _requested_addresses(gateway)
        return not values or (len(values) == 1 and self._pool.contains(values[0]))

    async def _report_problem(self, gateway: Object, problem: str) -> None:
        name = gateway["metadata"]["namespace"], gateway["metadata"]["name"]
        before = self._told.pop(name, "")
        if problem:
            self._told[name] = problem
        if problem and problem != before:
            await write_warning_event(self._registry, GATEWAYS, gateway, "AllocationFailed", problem)


async def create_pool_class(registry: Registry, networks: Sequence[Network]) -> None:
    """Write the ranges, or that there are none, into a ConfigMap for `vipwire gateway`."""
    found = registry.find(CONFIG_MAPS, *POOL)
    data = {"ranges": ",".join(map(str, networks))}
    if not networks:
        if found is not None:
            await registry.delete(CONFIG_MAPS, *POOL, options=_OPTIONS)
    elif found is None:
        await registry.create(CONFIG_MAPS, POOL.namespace, {"metadata": {"name": POOL.name}, "data": data}, _OPTIONS)
    elif found.get("data") != data:
        await registry.change(CONFIG_MAPS, *POOL, lambda old: old | {"data": data}, _OPTIONS)


def build_wanted_service(gateway: Object, there: Object | None = None) -> Object:
    meta, spec = gateway["metadata"], gateway["spec"]
    name, more = meta["name"], spec.get("infrastructure") or {}
    announcing = {key: text for key, text in (meta.get("annotations") or {}).items() if key.startswith(_ANNOUNCING)}
    # From an older vipwire: no proxy may translate the address before its ipMode is changed.
    other = {} if there is None or has_right_ip_mode(there) else {_PROXY: "vipwire-gateway"}
    asked = _requested_addresses(gateway)
    return {
        "metadata": {
            "name": service_name(name, spec["gatewayClassName"]),
            "labels": {**(more.get("labels") or {}), **name_label(name), **other},
            "annotations": {**(more.get("annotations") or {}), **announcing, GATEWAY: name},
            "ownerReferences": [_owner_reference(gateway)],
        },
        "spec": {
            "type": "LoadBalancer",
            "allocateLoadBalancerNodePorts": False,
            "ipFamilyPolicy": "PreferDualStack",
            "ports": list(_build_ports(spec.get("listeners") or ())),
            **({"loadBalancerIP": asked[0]} if asked else {}),
        },
    }


def _build_ports(listeners: Sequence[Any]) -> Iterator[Object]:
    places = ((each["port"], "UDP" if each.get("protocol") == "UDP" else "TCP") for each in listeners)
    for port, protocol in dict.fromkeys(places):
        yield {"name": f"{protocol.lower()}-{port}", "port": port, "protocol": protocol}


def needs_change(there: Object, wanted: Object) -> bool:
    return merge_service(there, wanted) != there


def merge_service(there: Object, wanted: Object) -> Object:
    """Return the existing Service with vipwire's fields; other clients' fields stay."""
    meta, spec = there["metadata"], dict(there["spec"])
    spec.pop("loadBalancerIP", None)
    known = {(each["port"], each["protocol"]): each for each in there["spec"].get("ports") or ()}
    ports = [known.get((each["port"], each["protocol"]), {}) | each for each in wanted["spec"]["ports"]]
    before = {each: meta.get(each) or {} for each in ("labels", "annotations")}
    before["labels"] = {key: text for key, text in before["labels"].items() if key != _PROXY}
    both = {key: {**before[key], **wanted["metadata"][key]} for key in before}
    asked = {key: text for key, text in wanted["spec"].items() if key == "loadBalancerIP"}
    return there | {"metadata": meta | both, "spec": spec | {"ports": ports} | asked}


def _owner_reference(gateway: Object) -> Object:
    meta = gateway["metadata"]
    owner = {"apiVersion": GATEWAYS.api_version, "kind": "Gateway", "name": meta["name"], "uid": meta["uid"]}
    return owner | {"controller": True, "blockOwnerDeletion": True}


def _requested_addresses(gateway: Object) -> list[str]:
    return [each["value"] for each in value_at(gateway, "spec", "addresses") or () if each.get("value")]


def _belongs_to(service: Object, gateway: Object) -> bool:
    """Report whether vipwire made a Gateway's Service: another controller (`--services`) may make some too."""
    owners = service["metadata"].get("ownerReferences") or ()
    owned = any(each["uid"] == gateway["metadata"]["uid"] for each in owners)
    return owned and not is_created_by_deployment(service["metadata"].get("annotations") or {})
