"""Answers a browser's questions from one Situation: a Service in full, a packet in any mode, the difference."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.config.modes import list_mode_names
from vipwire.errors import ConfigError, UnsupportedError, VipwireError
from vipwire.inspect.difference import diff_document, write_script
from vipwire.inspect.explain.document import explain_document
from vipwire.inspect.explain.explanation import explain_here, explain_packet, remove_interface
from vipwire.inspect.explain.packet import find_services, read_packet
from vipwire.inspect.explain.routes import find_source_towards
from vipwire.inspect.node.family_view import FamilyView
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.page.look import read_changes_of
from vipwire.inspect.status.counts import read_observed_counts
from vipwire.inspect.status.document import Document, build_service_document
from vipwire.model.names import ObjectName
from vipwire.model.service import Service
from vipwire.modes.inspection import inspection_of
from vipwire.modes.registry import find_selected_mode, list_specs, load_driver
from vipwire.plan.resolve import Packet, resolve_packet
from vipwire.proxy_daemon.start.modes import find_usable_families
from vipwire.reconcile.delta import Delta

MOST_LINES: Final = 2000
"""The most lines of rules or differences in one answer."""

Question = Callable[[Situation], Document]
Asked = Mapping[str, str]


def find_question(path: str, asked: Asked) -> Question | None:
    found: dict[str, Callable[[Situation, Asked], Document]] = {
        "/api/service": _answer_service,
        "/api/explain": _answer_explain,
        "/api/diff": _answer_diff,
    }
    ask = found.get(path)
    return None if ask is None else lambda situation: ask(situation, asked)


def _answer_service(situation: Situation, asked: Asked) -> Document:
    """Describe a Service as `status` does, with its objects as the mode's tool writes them, and its last changes."""
    namespace, _, name = asked.get("name", "").partition("/")
    service = situation.store.services.get(ObjectName(namespace, name))
    if service is None:
        raise ConfigError(f"there is no Service {asked.get('name', '')!r}")
    return {
        "service": build_service_document(situation, service, read_observed_counts(situation, [service.name])),
        "rules": [_list_rules(side, service) for side in situation.sides if service.name in side.plans],
        "changes": read_changes_of(situation.config, str(service.name)),
        "looked": time.time(),
    }


def _list_rules(side: FamilyView, service: Service) -> Document:
    document: Document = {"family": side.family.value, "tool": "", "lines": [], "more": 0, "drift": []}
    rendered = side.rendered.get(service.name)
    if rendered is None or side.mode is None:
        return document | {"reason": side.obstacle}
    objects = {**rendered.own, **rendered.shared}
    lines = write_script(side, Delta(added=dict(objects)))
    drift = side.compute_drift(service.name)
    document["tool"] = side.explainer.tool if side.explainer is not None else ""
    document |= {"lines": lines[:MOST_LINES], "more": max(0, len(lines) - MOST_LINES)}
    document["drift"] = write_script(side, drift)[:MOST_LINES] if drift else []
    return document


def _answer_diff(situation: Situation, asked: Asked) -> Document:
    name = asked.get("name", "")
    document = diff_document(situation, find_services(situation.store.services, name) if name else None)
    for family in document["families"]:
        family["more"] = max(0, len(family["script"]) - MOST_LINES)
        family["script"] = family["script"][:MOST_LINES]
    return document


def _answer_explain(situation: Situation, asked: Asked) -> Document:
    mode = asked.get("mode", "")
    packet = remove_interface(read_packet(situation, asked.get("from", "").strip(), asked.get("to", "").strip()))
    if mode and mode != situation.config.proxy_mode:
        if mode not in list_mode_names():
            raise ConfigError(f"{mode!r} is not a mode; allowed: {', '.join(list_mode_names())}")
        return _explain_in_mode(situation, packet, mode)
    return explain_document(explain_here(situation, packet))


def _explain_in_mode(situation: Situation, packet: Packet, mode: str) -> Document:
    """Explain a packet in a mode that does not run here, from the objects which that mode would write."""
    config = replace(situation.config, mode=mode, explicit=situation.config.explicit | {"mode"})
    try:
        built = load_driver(find_selected_mode(config)).supposed(config, find_usable_families())
    except (VipwireError, OSError) as error:
        raise UnsupportedError(f"{mode} mode cannot run on this machine: {error}") from error
    try:
        sides = tuple(_suppose_mode(config, side, built, packet) for side in situation.sides)
        other = replace(situation, config=config, sides=sides)
        found = explain_packet(other, packet, find_source_towards, lambda _: "")
        if found is None:
            raise UnsupportedError("this machine has no IPv6")
        return explain_document(found) | {"supposed": True}
    finally:
        for each in built.values():
            each.close()


def _suppose_mode(config: Config, side: FamilyView, built: Mapping[Any, Any], packet: Packet) -> FamilyView:
    """Return a view in which the kernel holds the objects that a mode renders for the packet's Service."""
    mode = built.get(side.family)
    if mode is None:
        return side
    frontend = getattr(resolve_packet(side.plan, packet), "frontend", None)
    name: ObjectName | None = frontend.port_name.service if frontend is not None else None
    node_objects = mode.render_node(side.node)
    rendered = {name: mode.render(side.plans[name])} if name is not None and name in side.plans else {}
    made = replace(
        side,
        mode=mode,
        explainer=inspection_of(find_selected_mode(config)).explainer(side.family, mode),
        node_objects=node_objects,
        rendered=rendered,
        remains="",
        obstacle="",
    )
    return replace(made, observed=dict(made.wanted))


def list_modes() -> list[Document]:
    return [{"name": spec.name, "forWhom": spec.for_whom} for spec in list_specs()]
