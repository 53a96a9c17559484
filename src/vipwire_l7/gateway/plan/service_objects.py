"""Writes the Services of Gateways and their EndpointSlices, as JSON. Pure.

A Service has no selector, for vipwire's Pods are in another namespace. Its EndpointSlices are copies of those of the
Service that selects the Pods, with other ports, so that the cluster's controllers decide which Pods are ready.
Traffic stays on the node where it arrives, since HAProxy runs there too, and keeps the client's address.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from vipwire.kube.gateway_addresses import GATEWAY, OF_CONTROLLER, name_label
from vipwire.model.names import ObjectName
from vipwire.model.net import format_address
from vipwire_l7.gateway.plan.own_services import OwnService
from vipwire_l7.gateway.watch import wire
from vipwire_l7.watch.objects import BackendEndpoint, BackendService, BackendSlice, Json, Usability

MANAGED_BY: Final = "vipwire-gateway"


def service_of(service: OwnService, uid: str, version: str, controller: str) -> Json:
    """Write a Gateway's Service. `uid` and `version` are those of the Gateway."""
    asked: Json = {"loadBalancerIP": service.asked, "ipFamilies": list(service.families)} if service.asked else {}
    policy = "SingleStack" if service.asked else "PreferDualStack"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service.name.name,
            "namespace": service.name.namespace,
            "labels": {**service.labels, **name_label(service.gateway.name)},
            "annotations": {**service.annotations, GATEWAY: service.gateway.name, OF_CONTROLLER: controller},
            "ownerReferences": [_owner(service, uid, version)],
        },
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": policy,
            **asked,
            "ports": [
                {
                    "name": _port_name(port, is_udp=is_udp),
                    "port": port,
                    "protocol": "UDP" if is_udp else "TCP",
                    "targetPort": target,
                }
                for (port, is_udp), target in service.targets.items()
            ],
        },
    }


def is_as_wanted(there: BackendService | None, service: OwnService) -> bool:
    """Report whether the fields that vipwire sets have the wanted values."""
    if there is None:
        return False
    found = {(each.number, each.udp): each.target for each in (*there.ports, *there.udp_ports)}
    return found == service.targets and service.annotations.items() <= there.annotations.items()


def slice_prefix(service: OwnService) -> str:
    return f"{service.name.name[:50]}-"


def slices_of(service: OwnService, pods: Iterable[BackendSlice]) -> Iterator[BackendSlice]:
    """Copy the slices of the Service that selects vipwire's Pods."""
    tcp = {_port_name(port, is_udp=False): target for (port, udp), target in service.targets.items() if not udp}
    udp = {_port_name(port, is_udp=True): target for (port, udp), target in service.targets.items() if udp}
    for each in pods:
        name = f"{slice_prefix(service)}{hashlib.sha256(f'{service.name} {each.name}'.encode()).hexdigest()[:10]}"
        made = ObjectName(service.name.namespace, name)
        yield BackendSlice(made, service.name, each.family, tcp, each.endpoints, udp)


def slice_object(of: BackendSlice, service: OwnService, uid: str, version: str) -> Json:
    ports = [("TCP", each) for each in of.ports.items()] + [("UDP", each) for each in of.udp_ports.items()]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": of.name.name,
            "namespace": of.name.namespace,
            "labels": {
                "kubernetes.io/service-name": of.service.name,
                "endpointslice.kubernetes.io/managed-by": MANAGED_BY,
            },
            "ownerReferences": [_owner(service, uid, version)],
        },
        "addressType": of.family.value,
        "endpoints": [_endpoint(each) for each in of.endpoints],
        "ports": [{"name": name, "port": port, "protocol": protocol} for protocol, (name, port) in ports],
    }


def _endpoint(endpoint: BackendEndpoint) -> Json:
    conditions = {
        "ready": endpoint.use is Usability.READY,
        "serving": endpoint.use is not Usability.NOT_READY,
        "terminating": endpoint.use is Usability.DRAINING,
    }
    node = {"nodeName": endpoint.node} if endpoint.node else {}
    return {"addresses": [format_address(endpoint.address)], "conditions": conditions, **node}


def list_copied_fields(slices: Iterable[BackendSlice]) -> set[tuple[object, ...]]:
    """Return the fields that vipwire sets, to compare slices by."""
    return {
        (
            each.name,
            each.family,
            tuple(sorted(each.ports.items())),
            tuple(sorted(each.udp_ports.items())),
            tuple(sorted((format_address(one.address), one.use.value, one.node) for one in each.endpoints)),
        )
        for each in slices
    }


def _port_name(port: int, *, is_udp: bool) -> str:
    return f"{'udp' if is_udp else 'tcp'}-{port}"


def _owner(service: OwnService, uid: str, version: str) -> Json:
    return {
        "apiVersion": f"{wire.GROUP}/{version}",
        "kind": "Gateway",
        "name": service.gateway.name,
        "uid": uid,
        "controller": True,
    }
