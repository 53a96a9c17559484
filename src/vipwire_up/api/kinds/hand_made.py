"""Validates Endpoints, made by hand or by a controller (pkg/apis/core/validation, ValidateEndpoints)."""

from collections.abc import Iterator

from vipwire_up.api.objects import names
from vipwire_up.api.objects.endpoint_address import problem_of
from vipwire_up.api.objects.errors import Cause, invalid, required
from vipwire_up.api.objects.resource import Object


def check_endpoints(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in the subsets; what was there before may stay."""
    subsets = new.get("subsets") or []
    if old is not None and subsets == (old.get("subsets") or []):
        return
    for index, subset in enumerate(subsets):
        path = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            yield required(path, "must specify `addresses` or `notReadyAddresses`")
        for part in ("addresses", "notReadyAddresses"):
            for number, address in enumerate(subset.get(part) or ()):
                yield from _check_address(address, f"{path}.{part}[{number}]")
        yield from _check_ports(subset.get("ports") or [], path)


def _check_address(address: Object, path: str) -> Iterator[Cause]:
    if problem := problem_of(address.get("ip") or ""):
        yield invalid(f"{path}.ip", address.get("ip"), problem)
    if address.get("hostname") and (problem := names.label(address["hostname"])):
        yield invalid(f"{path}.hostname", address["hostname"], problem)
    if address.get("nodeName") and (problem := names.subdomain(address["nodeName"])):
        yield invalid(f"{path}.nodeName", address["nodeName"], problem)


def _check_ports(ports: list[Object], path: str) -> Iterator[Cause]:
    for number, port in enumerate(ports):
        name = port.get("name") or ""
        if not name and len(ports) > 1:
            yield required(f"{path}.ports[{number}].name")
        elif name and (problem := names.label(name)):
            yield invalid(f"{path}.ports[{number}].name", name, problem)
