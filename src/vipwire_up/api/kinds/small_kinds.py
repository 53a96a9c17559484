"""ConfigMaps, Secrets, Leases and Namespaces: types, columns and validation."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.kinds.service import SERVICE_TYPES
from vipwire_up.api.objects import names
from vipwire_up.api.objects.columns import AGE, NAME, column_of_path, field_readers
from vipwire_up.api.objects.errors import Cause, forbidden, invalid, required, too_long
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind ConfigMap | Configuration data for programs.
  binaryData {}bytes #3 | Binary values, in base64.
  data {}string #2 | Text values.
  immutable bool #4 | True if the values cannot change.
kind Secret | Confidential data, such as keys and passwords.
  data {}bytes #2 | Values, in base64.
  immutable bool #5 | True if the values cannot change.
  stringData {}string #4 | Text values, which the server writes to data.
  type string #3 default=Opaque | Type of the Secret.
kind Namespace | A scope for names of objects.
  spec NamespaceSpec #2 default={} | Desired state of the Namespace.
  status NamespaceStatus #3 default={} | Observed state of the Namespace.
NamespaceSpec | Desired state of a Namespace.
  finalizers []string #1 atomic | Identifiers of components that must act before the deletion.
NamespaceStatus | Observed state of a Namespace.
  conditions []NamespaceCondition #2 key=type merge=type | Conditions that delay the deletion.
  phase string #1 one=Active,Terminating | Phase of the Namespace: Active or Terminating.
NamespaceCondition | One aspect of a Namespace's state.
  lastTransitionTime time #4 | Time of the last change of status.
  message string #6 | Explanation for people.
  reason string #5 | Reason for the status, in one word.
  status string #2 required | Status of the condition: True, False or Unknown.
  type string #1 required | Type of the condition.
"""
_LEASES: Final = """
kind Lease | A lease, by which one holder leads or shows that it is alive.
  spec LeaseSpec #2 | Desired state of the Lease.
LeaseSpec | Desired state of a Lease.
  acquireTime microtime #3 | Time at which the holder acquired the lease.
  holderIdentity string #1 | Identity of the holder.
  leaseDurationSeconds int32 #2 | Seconds from renewTime to the expiry.
  leaseTransitions int32 #5 | Number of changes of the holder.
  preferredHolder string #7 | Identity of the preferred holder.
  renewTime microtime #4 | Time of the last renewal.
  strategy string #6 | Strategy for the election of the holder.
"""
_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META | SERVICE_TYPES)
_COORDINATION: Final = read_types(_LEASES, "io.k8s.api.coordination.v1", META)


IMMORTAL: Final = ("default", "kube-system", "kube-public")
"""Namespaces that cannot be deleted."""


def _default_namespace(new: Object) -> None:
    new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"]["name"]


def _prepare_namespace(new: Object, old: Object | None) -> None:
    if old is None:
        new["spec"] = {"finalizers": ["kubernetes"]}
        new["status"] = {"phase": "Active"}


def _default_secret(new: Object) -> None:
    for key, text in (new.pop("stringData", None) or {}).items():
        new.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


_KEY: Final = re.compile("[-._a-zA-Z0-9]+")
_NO_KEY: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_MOST_BYTES: Final = 1 << 20
_STAYS: Final = "field is immutable when `immutable` is set"
_REDACTED: Final = "<secret contents redacted>"
_KEYS_OF_TYPE: Final = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}
_ACCOUNT: Final = "kubernetes.io/service-account.name"


def _check_config_map(new: Object, old: Object | None) -> Iterator[Cause]:
    texts, binary = new.get("data") or {}, new.get("binaryData") or {}
    for key in texts:
        yield from _check_data_key(key, "data")
        if key in binary:
            yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in binary:
        yield from _check_data_key(key, "binaryData")
    if sum(len(text.encode()) for text in texts.values()) + _count_bytes(binary) > _MOST_BYTES:
        yield too_long("", _MOST_BYTES)
    yield from _check_immutable(new, old)


def _check_secret(new: Object, old: Object | None) -> Iterator[Cause]:
    if old and old.get("type") != new.get("type"):
        yield invalid("type", new.get("type"), "field is immutable")
    yield from _check_immutable(new, old)
    data = new.get("data") or {}
    for key in data:
        yield from _check_data_key(key, "data")
    if _count_bytes(data) > _MOST_BYTES:
        yield too_long("data", _MOST_BYTES)
    yield from _check_secret_type(new, data)


def _check_secret_type(new: Object, data: Mapping[str, str]) -> Iterator[Cause]:
    kind = str(new.get("type") or "")
    for key in _KEYS_OF_TYPE.get(kind, ()):
        if key not in data or (kind.endswith("ssh-auth") and not data[key]):
            yield required(f"data[{key}]")
        elif key.startswith(".docker") and (problem := _find_json_problem(data[key])):
            yield invalid(f"data[{key}]", _REDACTED, problem)
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        yield required("data[username]")
        yield required("data[password]")
    if kind == "kubernetes.io/service-account-token" and not value_at(new, "metadata", "annotations", _ACCOUNT):
        yield required(f"metadata.annotations[{_ACCOUNT}]")


def _find_json_problem(encoded: str) -> str:
    try:
        found: Any = json.loads(base64.b64decode(encoded))
    except (ValueError, RecursionError) as error:
        return str(error)
    return "" if isinstance(found, dict) else "json: cannot unmarshal into a map"


def _check_data_key(key: str, part: str) -> Iterator[Cause]:
    path = f"{part}[{key}]"
    if len(key) > 253:
        yield invalid(path, key, "must be no more than 253 characters")
    if not _KEY.fullmatch(key):
        yield invalid(path, key, _NO_KEY)
    if key in (".", ".."):
        yield invalid(path, key, f"must not be '{key}'")
    elif key.startswith(".."):
        yield invalid(path, key, "must not start with '..'")


def _count_bytes(data: Mapping[str, str]) -> int:
    return sum(len(text.rstrip("=")) * 3 // 4 for text in data.values())


def _check_immutable(new: Object, old: Object | None) -> Iterator[Cause]:
    if old and old.get("immutable"):
        for part in ("immutable", "data", "binaryData"):
            if (new.get(part) or None) != (old.get(part) or None):
                yield forbidden(part, _STAYS)


def _check_lease(new: Object, _old: Object | None) -> Iterator[Cause]:
    spec = new.get("spec") or {}
    for name, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        value = spec.get(name)
        if value is not None and value < least:
            yield invalid(f"spec.{name}", value, f"must be greater than {'' if least else 'or equal to '}0")
    if spec.get("preferredHolder") and not spec.get("strategy"):
        yield forbidden("spec.preferredHolder", "may only be specified when `strategy` is defined")


CONFIG_MAPS: Final = Resource(
    kind="ConfigMap",
    plural="configmaps",
    type=_TYPES["ConfigMap"],
    short_names=("cm",),
    check=_check_config_map,
    columns=(
        NAME,
        Column("Data", lambda v, _: len(v.get("data") or ()) + len(v.get("binaryData") or ()), kind="integer"),
        AGE,
    ),
)

SECRETS: Final = Resource(
    kind="Secret",
    plural="secrets",
    type=_TYPES["Secret"],
    default=_default_secret,
    check=_check_secret,
    fields=field_readers("type"),
    columns=(
        NAME,
        Column("Type", column_of_path("type", absent="")),
        Column("Data", lambda value, _: len(value.get("data") or ()), kind="integer"),
        AGE,
    ),
)

NAMESPACES: Final = Resource(
    kind="Namespace",
    plural="namespaces",
    type=_TYPES["Namespace"],
    namespaced=False,
    short_names=("ns",),
    has_status=True,
    deletes_many=False,
    name_rule=names.check_label,
    default=_default_namespace,
    prepare=_prepare_namespace,
    fields=field_readers("status.phase"),
    columns=(NAME, Column("Status", column_of_path("status", "phase")), AGE),
)

LEASES: Final = Resource(
    kind="Lease",
    plural="leases",
    created_by_put=True,
    put_needs_version=True,
    group="coordination.k8s.io",
    type=_COORDINATION["Lease"],
    name_rule=names.check_subdomain,
    check=_check_lease,
    columns=(NAME, Column("Holder", column_of_path("spec", "holderIdentity", absent="")), AGE),
)
