"""Remarks of `check` and `status` about ebpf mode: its state or obstacles, other programs, and the fill of maps."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from vipwire.config.configuration import Config
from vipwire.errors import VipwireError
from vipwire.linux.bpf.pins import require_mounted
from vipwire.linux.bpf.programs import HOOKS, list_attached
from vipwire.model.net import Family
from vipwire.modes.ebpf.cgroup import find_cgroup, find_pods
from vipwire.modes.ebpf.pinned import NodePins, find_other_nodes
from vipwire.modes.ebpf.probe import probe_kernel
from vipwire.modes.ebpf.tables import Tables
from vipwire.modes.inspection import Remark

_MESHES: Final = {
    "pilot-agent": "Istio",
    "ztunnel": "Istio's ambient mode",
    "linkerd2-proxy": "Linkerd",
    "kuma-dp": "Kuma",
}
"""Processes of service meshes, by their name in /proc."""


def find_remarks(config: Config, folder: Path, proc: Path = Path("/proc")) -> Iterator[Remark]:
    """Examine this machine; attach the programs with empty maps for a moment."""
    try:
        cgroup = find_cgroup(config.ebpf.cgroup)
        require_mounted(may_mount=False)
        probe_kernel(cgroup, affinity=config.ebpf.affinity)
    except (VipwireError, OSError) as error:
        said, _, remedy = str(error).partition(": ")
        yield Remark("programs", said, remedy, bad=True)
        return
    yield Remark("programs", f"can be loaded, and attached to {cgroup}")
    if config.ebpf.clients in ("", "all"):
        yield _check_pods_cgroup(cgroup)
    with closing(NodePins(folder, cgroup)) as pinned:
        if pinned.exists:
            yield from _check_attached_programs(cgroup, pinned)
        yield from _name_foreign(cgroup, pinned)
        yield from _report_map_fill(pinned)
    yield from _check_other_nodes(folder)
    yield from _check_service_meshes(config, proc)


def find_standing_remarks(config: Config, folder: Path) -> Iterator[Remark]:
    """Report the state of programs and maps. Tries nothing."""
    try:
        cgroup = find_cgroup(config.ebpf.cgroup)
    except (VipwireError, OSError) as error:
        yield Remark("programs", f"cannot be read: {error}", bad=True)
        return
    with closing(NodePins(folder, cgroup)) as pinned:
        looks = {
            "programs": _check_attached_programs(cgroup, pinned),
            "other programs": _name_foreign(cgroup, pinned),
            "maps": _report_map_fill(pinned),
        }
        for area, found in looks.items():
            try:
                yield from list(found)
            except (VipwireError, OSError) as error:
                yield Remark(area, f"cannot be read: {error}", bad=True)


def _check_attached_programs(cgroup: Path, pinned: NodePins) -> Iterator[Remark]:
    running = pinned.read_attached_programs()
    missing = [hook for hook in HOOKS if hook not in running]
    said = f"{len(running)} of {len(HOOKS)} programs, for {cgroup}"
    if missing:
        yield Remark("in force", f"{said}; not {', '.join(missing)}", "rules serve the others", bad=True)
    else:
        yield Remark("in force", said)


def _check_pods_cgroup(cgroup: Path) -> Remark:
    if find_pods(cgroup).number:
        return Remark("Pods", "recognised by kubelet's cgroup")
    return Remark(
        "Pods",
        f"there is no cgroup of kubelet's below {cgroup}: vipwire translates only the node's own sockets",
        "vipwire proxy checks again every syncPeriod; if kubelet's cgroup is elsewhere, set --ebpf-cgroup to its "
        "parent",
    )


def _name_foreign(cgroup: Path, pinned: NodePins) -> Iterator[Remark]:
    """Name the hooks at which this cgroup has foreign programs, too."""
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ours = {hook: link.program for hook in HOOKS if (link := pinned.link(hook)) is not None}
        there = {hook: list_attached(target, hook, effective=True)[0] for hook in HOOKS}
    finally:
        os.close(target)
    others = [hook for hook, numbers in there.items() if set(numbers) - {ours.get(hook)}]
    if others:
        yield Remark(
            "other programs",
            f"other programs also run at {', '.join(others)}: both may translate",
            "see `bpftool cgroup tree`; with Cilium, switch off the socket load balancer",
        )
    missing = [hook for hook in ours if ours[hook] not in there[hook]]
    if missing:
        yield Remark(
            "overridden",
            (
                f"vipwire's programs do not run at {', '.join(missing)}: another program, higher in the cgroup "
                "tree, overrides them"
            ),
            "see `bpftool cgroup tree`",
            bad=True,
        )


def _check_other_nodes(folder: Path) -> Iterator[Remark]:
    gone, others = find_other_nodes(folder)
    if gone:
        yield Remark(
            "programs left",
            f"{len(gone)} deleted network namespaces still have programs",
            "`vipwire cleanup` and the next start of vipwire proxy remove them",
        )
    if others:
        yield Remark("other nodes", f"{others} other network namespaces have folders in {folder.parent}")


def _report_map_fill(pinned: NodePins) -> Iterator[Remark]:
    for family in Family:
        tables = Tables(family, pinned)
        if tables.observe():
            said = ", ".join(f"{name} {used} of {room}" for name, (used, room) in tables.measure_map_fill().items())
            yield Remark(f"maps of {family.value}", said)


def _check_service_meshes(config: Config, proc: Path) -> Iterator[Remark]:
    found = set()
    for path in proc.glob("[0-9]*/comm") if config.ebpf.clients != "node" else ():
        try:
            name = path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:  # the process has ended
            continue
        if name in _MESHES:
            found.add(_MESHES[name])
    if found:
        yield Remark(
            "service mesh",
            f"{' and '.join(sorted(found))} runs here: its sidecars would see endpoints, not Services",
            "use --ebpf-clients=node",
        )
