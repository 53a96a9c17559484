"""Discovery: the groups and resources that the API server serves, in the old form (many documents) and aggregated."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from vipwire import __version__
from vipwire_up.api.kinds.catalogue import SERVED
from vipwire_up.api.objects.resource import Resource

KUBERNETES: Final = "1.36"

_STATUS_VERBS: Final = ["get", "patch", "update"]


def build_version() -> dict[str, str]:
    major, minor = KUBERNETES.split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{KUBERNETES}.0+vipwire.{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "python",
        "platform": "linux",
    }


@cache
def resources_by_group() -> dict[str, dict[str, list[Resource]]]:
    """Return the resources of each group by version, the preferred version first; the core group is ""."""
    found: dict[str, dict[str, list[Resource]]] = {}
    for each in sorted(SERVED, key=lambda resource: (resource.group, resource.version, resource.plural)):
        found.setdefault(each.group, {}).setdefault(each.version, []).append(each)
    return found


def resources_by_base_path() -> dict[str, list[Resource]]:
    return {members[0].base: members for versions in resources_by_group().values() for members in versions.values()}


def build_api_versions(address: str) -> dict[str, Any]:
    """Build the answer to /api."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def build_api_group(group: str) -> dict[str, Any]:
    """Build the answer to /apis/GROUP."""
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in resources_by_group()[group]]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def build_api_group_list() -> dict[str, Any]:
    """Build the answer to /apis."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [build_api_group(group) for group in resources_by_group() if group],
    }


def build_resource_list(members: Sequence[Resource]) -> dict[str, Any]:
    entries = [entry for resource in members for entry in _build_entries(resource)]
    group_version = members[0].api_version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def build_aggregated_discovery(names: Iterable[str], version_name: str) -> dict[str, Any]:
    """Build aggregated discovery (KEP-3352)."""
    items = []
    for group in names:
        versions = [
            {"version": version, "resources": [_describe_resource(each) for each in members], "freshness": "Current"}
            for version, members in resources_by_group()[group].items()
        ]
        meta = {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None}
        items.append({"metadata": meta, "versions": versions})
    api_version = f"apidiscovery.k8s.io/{version_name}"
    return {"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items}


def _build_entries(resource: Resource) -> list[dict[str, Any]]:
    entry = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
    }
    entry = {key: value for key, value in entry.items() if value != []}
    sub = {"singularName": "", "namespaced": resource.namespaced, "kind": resource.kind}
    return [entry] + [
        {"name": f"{resource.plural}/{name}", **sub, "verbs": verbs} for name, verbs in list_subresources(resource)
    ]


def list_subresources(resource: Resource) -> list[tuple[str, list[str]]]:
    found = [("finalize", ["update"])] if resource.plural == "namespaces" else []
    return found + ([("status", _STATUS_VERBS)] if resource.has_status else [])


def _describe_resource(resource: Resource) -> dict[str, Any]:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    described = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
        "subresources": [
            {"subresource": name, "responseKind": kind, "verbs": verbs} for name, verbs in list_subresources(resource)
        ],
    }
    return {key: value for key, value in described.items() if value != []}
