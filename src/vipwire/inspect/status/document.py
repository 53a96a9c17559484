"""Services as documents: plain mappings with stable names, from which tables, JSON and YAML are made.

Names are Kubernetes' (`nodePort`, `sessionAffinity`) if it has the field; shares are fractions of 1.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from vipwire.config.configuration import Config
from vipwire.config.flags import list_explicit_flags
from vipwire.errors import VipwireError
from vipwire.inspect.command.show import format_time
from vipwire.inspect.earlier.look import EarlierChain
from vipwire.inspect.node.family_view import FamilyView
from vipwire.inspect.node.silence import find_silences, list_unread_objects
from vipwire.inspect.node.situation import Kernel, Situation, open_kernel
from vipwire.inspect.node.source import node_name
from vipwire.inspect.status.counts import build_refusal_documents, count_document, open_connections_document
from vipwire.inspect.status.usage import describe_endpoint_usages
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Family, format_address, parse_address
from vipwire.model.problem import Problem
from vipwire.model.service import Service, ServicePort
from vipwire.model.text import find_nearest
from vipwire.modes.inspection import Remark
from vipwire.plan.plan import Drop, Forward, Frontend, Masquerade, Target, join_health_checks
from vipwire.proxy_daemon.start.modes import find_usable_families as families_here
from vipwire.proxy_daemon.start.record import ProxyRecord, ProxyState, read_record
from vipwire.proxy_daemon.sync.node_plan import list_awaited_facts
from vipwire.proxy_daemon.sync.report import describe_missing_node, describe_unknown_fact
from vipwire.reconcile.counts import Counts, EndpointName, Owner, Refusal
from vipwire.reconcile.delta import Delta

Document = dict[str, Any]

_MASQUERADE = {Masquerade.NEVER: "never", Masquerade.UNLESS_POD: "unless-pod", Masquerade.ALWAYS: "always"}


@runtime_checkable
class Listens(Protocol):
    """A mode in which clients may connect to sockets of the mode's own."""

    def listens_at(self, frontend: Frontend) -> tuple[str, ...]:
        """Return the sockets as `address:port`; none if rules translate instead."""


def compute_shares(forward: Forward) -> dict[Target, Fraction]:
    """Return each target's share of a pool's new connections, over all clients."""
    total = sum(forward.weights)
    return {target: Fraction(weight, total) for target, weight in zip(forward.pool, forward.weights, strict=True)}


def format_share(share: float | Fraction) -> str:
    """Write a share: `20 %`, `33.3 %`."""
    return f"{float(share) * 100:.3g} %"


def build_family_document(side: FamilyView) -> Document:
    delta = side.delta
    document: Document = {
        "family": side.family.value,
        "state": describe_drift(delta, side),
        "wantedObjects": len(side.wanted) if side.mode else None,
        "observedObjects": None if side.observed is None else len(side.observed),
        **_count_differences(delta),
    }
    if side.obstacle or side.remains:
        document["reason"] = side.obstacle or side.remains
    return document


def describe_drift(delta: Delta[Any, Any] | None, side: FamilyView) -> str:
    """Sum up a difference in one to three words."""
    if delta is None:
        return "unknown"
    if not side.observed:
        return "of another version" if side.remains else "not programmed"
    return "drifted" if delta else "as planned"


def _count_differences(delta: Delta[Any, Any] | None) -> Document:
    if delta is None:
        return {"missing": None, "different": None, "surplus": None}
    return {"missing": len(delta.added), "different": len(delta.changed), "surplus": len(delta.removed)}


def build_service_document(situation: Situation, service: Service, counted: Counts | None = None) -> Document:
    """Describe one Service: its fields, its ports with their frontends and endpoints, the state of its objects.

    `counted` adds traffic.
    """
    document: Document = {
        "namespace": service.name.namespace,
        "name": service.name.name,
        "type": service.type.value,
        "internalTrafficPolicy": service.internal_policy.value,
        "externalTrafficPolicy": service.external_policy.value,
        "sessionAffinitySeconds": service.affinity_seconds,
        "loadBalancerSourceRanges": [str(prefix) for prefix in service.source_ranges],
        "annotations": dict(service.annotations),
        "ports": [_build_port_document(situation, service, port, counted) for port in service.ports],
        "kernel": [_build_kernel_document(side, service) for side in situation.sides if service.name in side.plans],
        "lost": [
            {"frontend": str(key), "to": str(winner)}
            for side in situation.sides
            if (plan := side.plans.get(service.name))
            for key, winner in plan.lost
        ],
    }
    if check := join_health_checks(side.plans.get(service.name) for side in situation.sides):
        document["healthCheckNodePort"] = {"port": check.port, "localEndpoints": check.local_endpoints}
    return document


def _build_kernel_document(side: FamilyView, service: Service) -> Document:
    drift = side.compute_drift(service.name)
    state = describe_drift(drift, side)
    counts = _count_differences(drift)
    counts.pop("surplus")
    return {"family": side.family.value, "state": state, **counts}


def _build_port_document(
    situation: Situation, service: Service, port: ServicePort, counted: Counts | None
) -> Document:
    name = service.port_name(port)
    return {
        "name": port.name,
        "protocol": port.protocol.label,
        "port": port.port,
        "nodePort": port.node_port or None,
        "frontends": [
            _build_frontend_document(side, frontend)
            for side in situation.sides
            for frontend in _find_frontends(side, service, port)
        ],
        **({"ranges": wide} if (wide := _build_range_documents(situation, service, port)) else {}),
        "endpoints": [
            {
                **usage,
                **_build_endpoint_counts(counted, EndpointName(name, parse_address(usage["address"]), usage["port"])),
            }
            for side in situation.sides
            for usage in describe_endpoint_usages(situation.store, side, service, port)
        ],
        **({"counts": count_document(counted, name)} if counted is not None else {}),
    }


def _build_endpoint_counts(counted: Counts | None, name: EndpointName) -> Document:
    if counted is None:
        return {}
    return {"counts": count_document(counted, name), "open": open_connections_document(counted, name)}


def _find_frontends(side: FamilyView, service: Service, port: ServicePort) -> Iterator[Frontend]:
    plan = side.plans.get(service.name)
    name = service.port_name(port)
    return (frontend for frontend in (plan.frontends if plan else ()) if frontend.port_name == name)


def _build_range_documents(situation: Situation, service: Service, port: ServicePort) -> list[Document]:
    return [
        _build_frontend_document(side, wide.frontend) | {"port": wide.key.first, "lastPort": wide.key.last}
        for side in situation.sides
        if (plan := side.plans.get(service.name))
        for wide in plan.ranges
        if wide.frontend.port_name == service.port_name(port)
    ]


def _build_frontend_document(side: FamilyView, frontend: Frontend) -> Document:
    key = frontend.key
    document: Document = {
        "family": side.family.value,
        "kind": frontend.kind.value,
        "address": None if key.address is None else format_address(key.address),
        "port": key.port,
        "protocol": key.protocol.label,
        **build_action_document(frontend),
    }
    if places := _list_sockets(side.mode, frontend):
        document["listening"] = places
    if frontend.short_circuit is not None:
        document["fromThisNode"] = _forward_document(frontend.short_circuit)
    if frontend.allowed_sources is not None:
        document["allowedSources"] = [str(prefix) for prefix in frontend.allowed_sources]
    return document


def _list_sockets(mode: object, frontend: Frontend) -> list[str]:
    return list(mode.listens_at(frontend)) if isinstance(mode, Listens) else []


def build_action_document(frontend: Frontend) -> Document:
    action = frontend.action
    if isinstance(action, Forward):
        return _forward_document(action)
    word = "drop" if isinstance(action, Drop) else "reject"
    return {"action": word, "reason": f"{frontend.port_name} {action.reason.value}"}


def _forward_document(forward: Forward) -> Document:
    document: Document = {
        "action": "forward",
        "algorithm": forward.spread.algorithm.value,
        "masquerade": _MASQUERADE[forward.masquerade],
        "endpoints": [
            {
                "address": format_address(target.address),
                "port": target.port,
                "local": target.local,
                "share": round(float(share), 6),
            }
            for target, share in compute_shares(forward).items()
        ],
    }
    if forward.affinity_seconds is not None:
        document["affinitySeconds"] = forward.affinity_seconds
    return document


def build_status_document(
    situation: Situation,
    services: list[Service],
    counted: Counts | None = None,
    proxy: Document | None = None,
    standing: Iterable[Remark] = (),
    earlier: Iterable[EarlierChain] = (),
) -> Document:
    """Describe everything, or the requested Services; `counted` has the traffic, `proxy` describes the proxy.

    `standing` are the mode's remarks, `earlier` are other programs' chains that decide before the mode.
    """
    counted = Counts() if counted is None else counted
    wanted = {service.name for service in services}
    everything = len(wanted) == len(situation.store.services)
    return {
        "kind": "Status",
        "node": situation.node_name,
        "mode": situation.config.proxy_mode,
        **({} if proxy is None else {"proxy": proxy}),
        "families": [build_family_document(side) for side in situation.sides],
        **({"standing": said} if (said := [each._asdict() for each in standing]) else {}),
        "earlier": [each.document | {"said": str(each)} for each in earlier],
        "services": [build_service_document(situation, service, counted) for service in services],
        "refusals": build_refusal_documents(_select_refusals(counted, wanted, everything=everything)),
        "problems": build_problem_documents(situation, None if everything else wanted),
    }


def build_unread_document(config: Config, error: VipwireError) -> Document:
    """Describe the proxy and the kernel if the objects cannot be read: no Service is known."""
    with open_kernel(config) as kernel:
        families = [_build_unread_family(family, kernel) for family in families_here()]
    return {
        "kind": "Status",
        "node": node_name(config),
        "mode": config.proxy_mode,
        "proxy": build_proxy_document(config),
        "silent": [*list_unread_objects(str(error)), *find_silences(config)],
        "families": families,
        "earlier": [],
        "services": [],
        "refusals": [],
        "problems": [],
    }


def _build_unread_family(family: Family, kernel: Kernel) -> Document:
    document: Document = {
        "family": family.value,
        "state": "unknown",
        "wantedObjects": None,
        **_count_differences(None),
    }
    try:
        seen, reason = len(kernel.modes[family].observe()), "the planned objects are unknown"
    except KeyError:
        seen, reason = None, kernel.obstacles.get(family, "")
    except (VipwireError, OSError) as error:
        seen, reason = None, f"vipwire cannot read the kernel's objects: {error}"
    return document | {"observedObjects": seen, "reason": reason}


def build_problem_documents(situation: Situation, about: set[ObjectName] | None = None) -> list[Document]:
    return [
        {"kind": item.kind, "object": str(item.object), "field": item.field, "message": item.message}
        for item in (*_find_node_problems(situation), *situation.store.problems, *_find_plan_problems(situation))
        if about is None or item.object in about
    ]


def _select_refusals(
    counted: Counts, wanted: set[ObjectName], *, everything: bool
) -> dict[tuple[Refusal, Owner], int]:
    """Return the refusals of the wanted Services; with `everything`, those without a Service too."""
    return {
        (reason, port): number
        for (reason, port), number in counted.refusals().items()
        if everything or (isinstance(port, ServicePortName) and port.service in wanted)
    }


def _find_node_problems(situation: Situation) -> list[Problem]:
    """Report a missing Node for this node's name, and missing facts of it that rules need."""
    store, name = situation.store, situation.node_name
    about = ObjectName("", name)
    awaited = list_awaited_facts(situation.config, situation.node)
    unknown = [Problem("Node", about, path, describe_unknown_fact(name, path)) for path in awaited]
    if name in store.nodes or (situation.config.manifests and not store.nodes):  # manifests need no Node
        return unknown
    near = find_nearest(name, store.nodes)
    text = describe_missing_node(name) + (f"; did you mean {near!r}?" if near else "")
    return [Problem("Node", about, "metadata.name", text), *unknown]


def _find_plan_problems(situation: Situation) -> list[Problem]:
    """Return the problems of annotations and of features that the mode lacks, once for both families."""
    found: dict[Problem, None] = {}
    for side in situation.sides:
        for plan in side.plans.values():
            found.update(dict.fromkeys(plan.problems))
            if side.mode is not None:
                found.update(dict.fromkeys(side.mode.find_shortcomings(plan)))
    return list(found)


def describe_state(kernel: Mapping[str, Any]) -> str:
    """Describe the state of a Service's objects in one family: `2 missing, 1 different`."""
    if kernel["state"] != "drifted":
        return str(kernel["state"])
    return ", ".join(f"{kernel[what]} {what}" for what in ("missing", "different") if kernel[what])


def build_proxy_document(config: Config) -> Document:
    """Describe the proxy of this network namespace; `otherFlags` are flags that this command does not share."""
    state, record = read_record(config.state_dir)
    document: Document = {"state": state.value}
    if record is not None:
        document |= _describe_record(record, config)
    if record is not None and state is not ProxyState.RUNNING:  # a running proxy changes it every 30 s
        document["seen"] = format_time(record.seen)
    return document


def _describe_record(record: ProxyRecord, config: Config) -> Document:
    looked = set(list_explicit_flags(config))
    other = [flag for flag in record.flags if flag not in looked and not flag.startswith("--proxy-mode=")]
    if record.mode != config.proxy_mode:
        other.append(f"--proxy-mode={record.mode}")
    return {
        "pid": record.pid,
        "version": record.version,
        "node": record.node,
        "mode": record.mode,
        "started": format_time(record.started),
        "ended": format_time(record.ended),
        "reason": record.reason,
        "flags": list(record.flags),
        "otherFlags": other,
        "lastSync": {family: format_time(when) for family, when in record.synced.items()},
        "failing": dict(record.failing),
    }
