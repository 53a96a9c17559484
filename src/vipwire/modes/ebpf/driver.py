"""The Driver of ebpf mode: nftables mode with programs beside it."""

import contextlib
import struct
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.linux.bpf.namespaces import cookie_of, netns_cookie
from vipwire.linux.bpf.pins import of_node, require_mounted
from vipwire.linux.bpf.programs import HOOKS
from vipwire.linux.bpf.syscall import require_architecture
from vipwire.linux.host.rights import capabilities
from vipwire.model.net import Family
from vipwire.modes.ebpf.cgroup import find_cgroup, find_pods
from vipwire.modes.ebpf.kernel import EbpfBackend, Wanted
from vipwire.modes.ebpf.layout import Settings, version
from vipwire.modes.ebpf.leftovers import ProgramRemains
from vipwire.modes.ebpf.mode import MODE
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.probe import probe
from vipwire.modes.ebpf.programs import build
from vipwire.modes.nftables.driver import DRIVER as RULES
from vipwire.modes.spec import Driver, Mode, ModeSpec, Place, Remark
from vipwire.reconcile.explainer import Explainer

_ALL: Final = "all"
_NODE: Final = "node"


class EbpfDriver(Driver):
    """Builds, tries, explains and removes programs, their maps, and the rules beside them."""

    def build(self, config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
        """Build it for each family; what is going to be run is tried."""
        require_architecture()
        families = tuple(families)
        cgroup = None
        if prepare:
            _require_namespaces(config)
            cgroup = find_cgroup(config.ebpf.cgroup)
            require_mounted(may_mount=True)
            probe(cgroup, affinity=config.ebpf.affinity)
        else:
            with contextlib.suppress(UnsupportedError):  # who only looks may be where no cgroup is to be seen
                cgroup = find_cgroup(config.ebpf.cgroup)
        rules = RULES.build(config, families, prepare=prepare)
        pinned = NodePins(folder(), cgroup)
        wanted = _wanted(config, cgroup)
        return {
            family: EbpfBackend(family, rules[family], pinned, wanted, _hooks(family, families))
            for family in families
        }

    def attempt(self, config: Config, families: Iterable[Family]) -> None:
        """Attach the programs for a moment, with empty maps, and try the rules."""
        RULES.attempt(config, families)
        require_mounted(may_mount=False, could_mount="CAP_SYS_ADMIN" in capabilities())
        probe(find_cgroup(config.ebpf.cgroup), affinity=config.ebpf.affinity)

    def place(self, config: Config) -> Place:
        """Return where the rules decide. The programs decide before a packet is made."""
        return RULES.place(config)

    def explainer(self, family: Family, mode: Any) -> Explainer[Any, Any, Any] | None:
        """Build what explains programs and rules."""
        from vipwire.modes.ebpf.explain import EbpfExplainer  # noqa: PLC0415  # not to run

        rules = RULES.explainer(family, mode.rules)
        return EbpfExplainer(family, rules, pods=mode.wanted.knows_pods)

    def remarks(self, config: Config) -> Iterable[Remark]:
        """Say whether programs can be had, who else has some, and how full the maps are."""
        from vipwire.modes.ebpf.remarks import remarks  # noqa: PLC0415  # not to run

        return chain(remarks(config, folder()), RULES.remarks(config))

    def standing(self, config: Config) -> Iterable[Remark]:
        """Say which programs are in force where, who else has some, and how full the maps are."""
        from vipwire.modes.ebpf.remarks import standing  # noqa: PLC0415  # not to run

        return chain(standing(config, folder()), RULES.standing(config))

    def remains(self, family: Family, running: ModeSpec) -> ProgramRemains | None:
        """Find programs and maps, unless this mode runs."""
        if running is MODE:
            return None
        try:
            return ProgramRemains(family, NodePins(folder(), None))
        except UnsupportedError:
            return None

    def translates(self, family: Family) -> bool:
        """Report whether a program of ours is in force."""
        del family
        try:
            pinned = NodePins(folder(), None)
        except UnsupportedError:  # so nobody has put programs in force
            return False
        return pinned.exists and any(pinned.link(hook) for hook in HOOKS)


def folder() -> Path:
    """Name this node's folder in bpffs."""
    return of_node(_node())


def _node() -> int:
    """Tell the cookie of this network namespace. Raise UnsupportedError where the kernel has none."""
    try:
        return netns_cookie()
    except OSError as error:
        raise UnsupportedError(
            "ebpf mode needs Linux 5.14 or newer: this kernel does not tell the cookie of a network namespace "
            f"(SO_NETNS_COOKIE: {error.strerror})"
        ) from error


def _hooks(family: Family, families: tuple[Family, ...]) -> tuple[str, ...]:
    """Choose the hooks that a family looks after: its own, of an only one all; the first has what both share.

    An IPv6 socket may name an IPv4 address, and the other way round nothing is lost.
    """
    others = tuple(version(each) for each in Family if each is not family)
    if len(families) == 1:
        return tuple(HOOKS)
    return tuple(
        hook
        for hook in HOOKS
        if hook.endswith(version(family)) or (family is families[0] and not hook.endswith(others))
    )


def _wanted(config: Config, cgroup: Path | None) -> Wanted:
    listed = config.ebpf.clients not in ("", _ALL)
    paths = config.ebpf.clients.split(",") if listed and config.ebpf.clients != _NODE else []
    options = config.ebpf.connected_udp, config.ebpf.affinity
    settings = Settings(_node(), 0, 0, listed, config.counters.level, build().number, *options)
    wanted = Wanted(
        settings,
        frozenset(map(_cookie, paths)),
        None if listed or cgroup is None else partial(find_pods, cgroup),
        tuple(map(Path, paths)) if listed else None,
    )
    wanted.look_for_pods()
    return wanted


def _require_namespaces(config: Config) -> None:
    """Raise UnsupportedError where connected UDP sockets of Pods could not be ended."""
    if config.ebpf.connected_udp and config.ebpf.clients != _NODE and "CAP_SYS_ADMIN" not in capabilities():
        raise UnsupportedError(
            "--ebpf-connected-udp ends sockets in the network namespaces of Pods, which needs the capability "
            "CAP_SYS_ADMIN and the node's processes (hostPID): add both, or use --ebpf-clients=node"
        )


def _cookie(path: str) -> int:
    try:
        return cookie_of(Path(path))
    except (OSError, struct.error) as error:
        raise ConfigError(
            f"--ebpf-clients: {path} is not all, node or a network namespace that can be entered: {error}"
        ) from error


DRIVER: Final = EbpfDriver()
