"""Moves rooms of the package `vipwire` into packages of their own, and renames them wherever they are named.

`python scripts/houses.py` can be run again on a tree where some of it is done. It moves and renames only.
"""

import re
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MOVES: Final = {
    "vipwire.backends.userspace.relay": "vipwire.relay",
    "vipwire.backends.userspace.messages": "vipwire.relay.messages",
    "vipwire.backends.userspace.control_client": "vipwire.relay.control_client",
    "vipwire.backends.userspace.remote_relay": "vipwire.relay.remote_relay",
    "vipwire.ingress": "vipwire_l7.ingress",
    "vipwire.gateway": "vipwire_l7.gateway",
    "vipwire.dns": "vipwire_up.dns",
    "vipwire.cluster": "vipwire_up",
    "vipwire.lab": "vipwire_lab",
    # The rooms of each package: no two folders import each other.
    "vipwire.netlink": "vipwire.linux.netlink",
    "vipwire.netlink.generations": "vipwire.linux.netlink.nftables.generations",
    "vipwire.bpf": "vipwire.linux.bpf",
    "vipwire.conntrack": "vipwire.linux.conntrack",
    "vipwire.host": "vipwire.linux.host",
    "vipwire.xtables": "vipwire.modes.xtables",
    "vipwire.backends": "vipwire.modes",
    "vipwire.app": "vipwire.proxy",
    "vipwire.serve": "vipwire.proxy.serve",
    "vipwire.handover": "vipwire.proxy.handover",
    "vipwire.plan.spread": "vipwire.model.spread",
    "vipwire.kube.yaml_errors": "vipwire.config.yaml_errors",
    "vipwire.kube.yaml_values": "vipwire.config.yaml_values",
    "vipwire.kube.proxied_manifests": "vipwire.kube.manifests.proxied",
    "vipwire.app.claim": "vipwire.proxy.start.claim",
    "vipwire.app.fallback": "vipwire.proxy.start.fallback",
    "vipwire.app.machine": "vipwire.proxy.start.machine",
    "vipwire.app.modes": "vipwire.proxy.start.modes",
    "vipwire.app.record": "vipwire.proxy.start.record",
    "vipwire.app.after_sync": "vipwire.proxy.sync.after_sync",
    "vipwire.app.engine": "vipwire.proxy.sync.engine",
    "vipwire.app.flow_keeper": "vipwire.proxy.sync.flow_keeper",
    "vipwire.app.node_plan": "vipwire.proxy.sync.node_plan",
    "vipwire.app.report": "vipwire.proxy.sync.report",
    "vipwire.app.sync_metrics": "vipwire.proxy.sync.sync_metrics",
    "vipwire.backends.nftables.names": "vipwire.modes.nftables.table.names",
    "vipwire.backends.nftables.text": "vipwire.modes.nftables.table.text",
    "vipwire.backends.nftables.read": "vipwire.modes.nftables.table.read",
    "vipwire.backends.nftables.index": "vipwire.modes.nftables.table.index",
    "vipwire.backends.nftables.fastpath": "vipwire.modes.nftables.table.fastpath",
    "vipwire.backends.nftables.counts": "vipwire.modes.nftables.table.counts",
    "vipwire.backends.nftables.skeleton": "vipwire.modes.nftables.table.skeleton",
    "vipwire.backends.nftables.ranges": "vipwire.modes.nftables.table.ranges",
    "vipwire.backends.nftables.render": "vipwire.modes.nftables.table.render",
    "vipwire.backends.nftables.script": "vipwire.modes.nftables.table.script",
    "vipwire.backends.nftables.expected_chains": "vipwire.modes.nftables.table.expected_chains",
    "vipwire.backends.nftables.features": "vipwire.modes.nftables.table.features",
    "vipwire.backends.ipvs.names": "vipwire.modes.ipvs.objects.names",
    "vipwire.backends.ipvs.ranges": "vipwire.modes.ipvs.objects.ranges",
    "vipwire.backends.ipvs.parts": "vipwire.modes.ipvs.objects.parts",
    "vipwire.backends.ipvs.explain.describe": "vipwire.modes.ipvs.objects.describe",
    "vipwire.backends.iptables.names": "vipwire.modes.iptables.rules.names",
    "vipwire.backends.iptables.settings": "vipwire.modes.iptables.rules.settings",
    "vipwire.backends.iptables.read": "vipwire.modes.iptables.rules.read",
    "vipwire.backends.iptables.script": "vipwire.modes.iptables.rules.script",
    "vipwire.backends.iptables.growth": "vipwire.modes.iptables.rules.growth",
    "vipwire.backends.iptables.ownership": "vipwire.modes.iptables.rules.ownership",
    "vipwire.backends.iptables.render": "vipwire.modes.iptables.rules.render",
    "vipwire.backends.iptables.recent": "vipwire.modes.iptables.rules.recent",
    "vipwire.backends.iptables.access.trial": "vipwire.modes.iptables.trial",
    "vipwire.backends.iptables.lock_wait": "vipwire.modes.iptables.access.lock_wait",
    "vipwire.backends.userspace.explain.describe": "vipwire.modes.userspace.describe",
    "vipwire.backends.userspace.explain.explainer": "vipwire.modes.userspace.explainer",
    "vipwire.backends.userspace.explain.rules": "vipwire.modes.userspace.explain_rules",
    "vipwire.inspect.family_view": "vipwire.inspect.node.family_view",
    "vipwire.inspect.situation": "vipwire.inspect.node.situation",
    "vipwire.inspect.source": "vipwire.inspect.node.source",
    "vipwire.inspect.status.slow_start": "vipwire.inspect.node.slow_start",
    "vipwire.inspect.options": "vipwire.inspect.command.options",
    "vipwire.inspect.show": "vipwire.inspect.command.show",
    "vipwire.inspect.packet": "vipwire.inspect.explain.packet",
    "vipwire.inspect.suggestions": "vipwire.inspect.explain.suggestions",
    "vipwire_l7.gateway.plan.objects": "vipwire_l7.gateway.plan.kinds.objects",
    "vipwire_l7.gateway.plan.grants": "vipwire_l7.gateway.plan.kinds.grants",
    "vipwire_l7.gateway.plan.hostnames": "vipwire_l7.gateway.plan.kinds.hostnames",
    "vipwire_l7.gateway.plan.addresses.own_services": "vipwire_l7.gateway.plan.own_services",
    "vipwire_l7.gateway.plan.addresses.service_objects": "vipwire_l7.gateway.plan.service_objects",
    "vipwire_lab.errors": "vipwire_lab.net.errors",
    "vipwire_lab.netns": "vipwire_lab.net.netns",
    "vipwire_lab.processes": "vipwire_lab.net.processes",
    "vipwire_lab.rtnetlink": "vipwire_lab.net.rtnetlink",
    "vipwire_lab.topology": "vipwire_lab.net.topology",
    "vipwire_lab.lan": "vipwire_lab.net.lan",
    "vipwire_lab.links": "vipwire_lab.net.links",
    "vipwire_lab.cluster": "vipwire_lab.lab.cluster",
    "vipwire_lab.continuous": "vipwire_lab.lab.continuous",
    "vipwire_lab.leftovers": "vipwire_lab.lab.leftovers",
    "vipwire_lab.manifests": "vipwire_lab.lab.manifests",
    "vipwire_lab.outcome": "vipwire_lab.lab.outcome",
    "vipwire_lab.probe": "vipwire_lab.lab.probe",
    "vipwire_lab.progress": "vipwire_lab.lab.progress",
    "vipwire_lab.state": "vipwire_lab.lab.state",
    "vipwire_lab.called": "vipwire_lab.lab.called",
    "vipwire_lab.sctp.messages": "vipwire_lab.echo.sctp_messages",
    "vipwire_lab.sctp.raw_sockets": "vipwire_lab.echo.sctp_sockets",
    "vipwire_up.api.errors": "vipwire_up.api.objects.errors",
    "vipwire_up.api.names": "vipwire_up.api.objects.names",
    "vipwire_up.api.object": "vipwire_up.api.objects.object",
    "vipwire_up.api.resource": "vipwire_up.api.objects.resource",
    "vipwire_up.api.addresses": "vipwire_up.api.objects.addresses",
    "vipwire_up.api.endpoint_address": "vipwire_up.api.objects.endpoint_address",
    "vipwire_up.api.answers.cells": "vipwire_up.api.objects.cells",
    "vipwire_up.api.openapi.schema": "vipwire_up.api.objects.schema",
    "vipwire_up.api.answers.reviews": "vipwire_up.api.reviews",
    "vipwire_up.api.answers.discovery": "vipwire_up.api.openapi.discovery",
    "vipwire_up.api.guard": "vipwire_up.api.serving.guard",
    "vipwire_up.api.route": "vipwire_up.api.serving.route",
    "vipwire_up.api.kinds.load_balancer": "vipwire_up.api.kinds.rules.load_balancer",
    "vipwire_up.api.kinds.probe": "vipwire_up.api.kinds.rules.probe",
    "vipwire_up.api.kinds.amounts": "vipwire_up.api.kinds.rules.amounts",
    "vipwire_up.controllers.feed": "vipwire_up.following.feed",
    "vipwire_up.controllers.events": "vipwire_up.following.events",
    "vipwire_up.source": "vipwire_up.following.source",
    "vipwire_up.announce": "vipwire_up.announcing.announce",
    "vipwire_up.announced": "vipwire_up.announcing.announced",
    "vipwire_up.controllers.balanced": "vipwire_up.announcing.balanced",
    "vipwire_up.beside": "vipwire_up.running.beside",
    "vipwire_up.part_metrics": "vipwire_up.running.part_metrics",
    "vipwire_up.parts": "vipwire_up.running.parts",
    "vipwire_up.own_addresses": "vipwire_up.running.own_addresses",
    "vipwire_up.server_identity": "vipwire_up.running.server_identity",
    "vipwire_up.joining.cli": "vipwire_up.machine_cli",
    "vipwire_up.dns.message": "vipwire_up.dns.messages.message",
    "vipwire_up.dns.names": "vipwire_up.dns.messages.names",
}
"""Module or package: its name before and after. Those with more words come first."""
ROOMS: Final = {
    "vipwire.linux": "Linux: netlink, BPF, connection tracking, and the machine that vipwire runs on.",
    "vipwire.proxy.start": "What a proxy needs before its first sync: the machine, the mode, the claim, the record.",
    "vipwire.proxy.sync": "From events to the kernel: the engine, what follows a sync, and the reports of it.",
    "vipwire.modes.nftables.table": "The table of nftables mode: its names, rules, elements and counters.",
    "vipwire.inspect.node": "The node as commands see it: the plan, the rendered objects, and those in the kernel.",
    "vipwire.inspect.command": "The options of the commands that look, and the printing of their documents.",
    "vipwire_l7.gateway.plan.kinds": "The objects of the Gateway API, and who may refer to which.",
    "vipwire_lab.net": "Network namespaces, links and processes, of which a lab is made.",
    "vipwire_lab.lab": "A lab: its nodes, Pods and clients, its objects, and probes between them.",
    "vipwire_up.api.objects": "Objects as the API server keeps them: names, types, encoding, errors.",
    "vipwire_up.following": "Follows the store's changes, and reports Kubernetes Events.",
    "vipwire_up.running": "The parts of a process of `vipwire up` or `vipwire join`, and what they share.",
    "vipwire_up.dns.messages": "DNS messages and names on the wire.",
}
"""New folders, and what is in each."""
EMPTIED: Final = {"explain", "sctp", "cluster"}
TEXTS: Final = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".txt",
    ".cfg",
    ".in",
    ".sh",
    ".json",
    ".tpl",
    ".importlinter",
}
NAMES: Final = {"Makefile", "Containerfile", ".importlinter", "setup", "noxfile.py"}


def path_of(module: str) -> Path:
    """Name the file or folder of a module."""
    return Path("src", *module.split("."))


def run(*command: str | Path) -> str:
    """Return what a command prints."""
    return subprocess.run(list(map(str, command)), cwd=ROOT, check=True, capture_output=True, text=True).stdout


def move() -> None:
    """Move each file below src/ to where the longest name in the table says."""
    table = [(path_of(before).parts, path_of(after)) for before, after in MOVES.items()]
    table.sort(key=lambda item: -len(item[0]))
    for name in run("git", "ls-files", "--", "src").splitlines():
        parts = Path(name).with_suffix("").parts if name.endswith(".py") else Path(name).parts
        for before, after in table:
            if parts[: len(before)] == before:
                new = Path(after, *parts[len(before) :]).as_posix() + (".py" if name.endswith(".py") else "")
                (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
                (ROOT / name).rename(ROOT / new)
                break
    run("git", "add", "-A", "src")


def make_rooms() -> None:
    """Give each new folder its `__init__.py`, and remove those of folders that are empty now."""
    for name, text in ROOMS.items():
        init = ROOT / path_of(name) / "__init__.py"
        if init.parent.is_dir() and not init.exists():
            init.write_text(f'"""{text}"""\n', encoding="utf-8")
    for init in (ROOT / "src").rglob("__init__.py"):
        alone = [each.name for each in init.parent.iterdir() if each.name != "__pycache__"] == ["__init__.py"]
        if alone and init.parent.name in EMPTIED:
            init.unlink()


FROM: Final = re.compile(r"^( *)from ([\w.]+) import ([\w, ]+)((?:  #.*)?)$", re.MULTILINE)


def split(found: re.Match[str]) -> str:
    """Rewrite `from package import module` where the module has moved elsewhere than its package."""
    indent, package, names, comment = found.groups()
    lines, stay = [], []
    for name in (each.strip() for each in names.split(",")):
        bare = name.partition(" as ")[0]
        after = MOVES.get(f"{package}.{bare}")
        if after is None:
            stay.append(name)
            continue
        folder, _, last = after.rpartition(".")
        alias = name if " as " in name else f"{last} as {bare}" if last != bare else bare
        lines.append(f"{indent}from {folder} import {alias}{comment}")
    if stay:
        lines.insert(0, f"{indent}from {package} import {', '.join(stay)}{comment}")
    return "\n".join(lines)


def substitution(separator: str) -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern of all names, the longest first, and the new ones: dotted, or as paths below src/."""
    form = (lambda name: name) if separator == "." else (lambda name: path_of(name).as_posix())
    table = {form(before): form(after) for before, after in MOVES.items()}
    names = "|".join(re.escape(name) for name in sorted(table, key=lambda name: -len(name)))
    return re.compile(
        rf"(?<![\w./-])({names})(?![\w-])" if separator == "." else rf"(?<![\w-])({names})(?![\w-])"
    ), table


def renamed(table: Mapping[str, str], found: re.Match[str]) -> str:
    """Return the new name for one that was found."""
    return table[found[1]]


def rename() -> None:
    """Rename in all texts that git has."""
    patterns = [substitution("."), substitution("/")]
    for name in run("git", "ls-files").splitlines():
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or not (path.suffix in TEXTS or path.name in NAMES):
            continue
        before = after = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            after = FROM.sub(split, after)
        for pattern, table in patterns:
            after = pattern.sub(partial(renamed, table), after)
        if after != before:
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    move()
    make_rooms()
    rename()
