"""The Driver of ebpf mode: nftables mode plus programs."""

import struct
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from vipwire.config.configuration import Config
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.linux.bpf.namespaces import read_cookie_of, read_netns_cookie
from vipwire.linux.bpf.pins import build_node_path, require_mounted
from vipwire.linux.bpf.programs import HOOKS
from vipwire.linux.bpf.syscall import require_architecture
from vipwire.linux.host.kernel import read_capabilities
from vipwire.model.net import Family
from vipwire.modes.ebpf.cgroup import find_cgroup, find_pods
from vipwire.modes.ebpf.kernel import EbpfBackend, ProgramSetup
from vipwire.modes.ebpf.layout import Settings, choose_family_suffix
from vipwire.modes.ebpf.mode import MODE
from vipwire.modes.ebpf.pinned import NodePins, remove_gone_nodes
from vipwire.modes.ebpf.probe import probe_kernel
from vipwire.modes.ebpf.programs import build
from vipwire.modes.nftables.driver import DRIVER as RULES
from vipwire.modes.spec import Driver, Mode, ModeSpec, Remains, RemovalResult, clean_by

_ALL: Final = "all"
_NODE: Final = "node"
_FORTH: Final = tuple(hook for hook in HOOKS if hook.startswith(("connect", "sendmsg")))


def _build_modes(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    require_architecture()
    families = tuple(families)
    cgroup = None
    if prepare:
        _require_namespaces(config)
        cgroup = find_cgroup(config.ebpf.cgroup)
        require_mounted(may_mount=True)
        probe_kernel(cgroup, affinity=config.ebpf.affinity)
    else:
        with suppress(UnsupportedError):  # a viewer may run where no cgroup is visible
            cgroup = find_cgroup(config.ebpf.cgroup)
    rules = RULES.build(config, families, prepare=prepare)
    pinned = NodePins(find_node_folder(), cgroup)
    if prepare:
        remove_gone_nodes(pinned.folder)
    wanted = _wanted_setup(config, cgroup)
    return {
        family: EbpfBackend(family, rules[family], pinned, wanted, _list_hooks(family, families))
        for family in families
    }


def _probe_host(config: Config, families: Iterable[Family]) -> None:
    """Attach the programs for a moment, with empty maps, and try the rules."""
    RULES.attempt(config, families)
    require_mounted(may_mount=False, could_mount="CAP_SYS_ADMIN" in read_capabilities())
    probe_kernel(find_cgroup(config.ebpf.cgroup), affinity=config.ebpf.affinity)


class ProgramRemains(Remains):
    """The leftovers of ebpf mode in bpffs for this node. Both families share them: the first call removes all.

    It removes the programs that connect sockets to endpoints at once. One second later it removes those that restore
    a datagram's source, because answers on their way still need them. Direct connections stay.
    """

    def __init__(self, pinned: NodePins) -> None:
        self._pins = pinned

    def remove_before_rules(self) -> RemovalResult:
        """Detach the programs; remove everything a second after the connecting ones went."""
        remove_gone_nodes(self._pins.folder)
        if not self._pins.exists:
            return RemovalResult()
        with closing(self._pins):
            if any((self._pins.folder / "links" / hook).exists() for hook in _FORTH):
                self._pins.detach_programs(_FORTH)
                return RemovalResult(waiting=("programs for replies",))
            self._pins.remove()
        return RemovalResult(removed=("programs and maps of ebpf mode",))


def _find_remains(_family: Family, running: ModeSpec) -> ProgramRemains | None:
    if running is not MODE:
        with suppress(UnsupportedError):
            return ProgramRemains(NodePins(find_node_folder(), None))
    return None


def _is_translating(_family: Family) -> bool:
    try:
        pinned = NodePins(find_node_folder(), None)
    except UnsupportedError:  # then no program can be attached
        return False
    return pinned.exists and any(pinned.link(hook) for hook in HOOKS)


def find_node_folder() -> Path:
    return build_node_path(_read_node_cookie())


def _read_node_cookie() -> int:
    """Return the cookie of this network namespace. Raise UnsupportedError if the kernel has none."""
    try:
        return read_netns_cookie()
    except OSError as error:
        raise UnsupportedError(
            "ebpf mode needs Linux 5.14 or newer: this kernel does not return the cookie of a network namespace "
            f"(SO_NETNS_COOKIE: {error.strerror})"
        ) from error


def _list_hooks(family: Family, families: tuple[Family, ...]) -> tuple[str, ...]:
    """Return the hooks that a family's backend manages: all if alone; the first family also has the shared ones.

    An IPv6 socket may name an IPv4 address, so a single family needs both families' hooks.
    """
    others = tuple(choose_family_suffix(each) for each in Family if each is not family)
    if len(families) == 1:
        return tuple(HOOKS)
    return tuple(
        hook
        for hook in HOOKS
        if hook.endswith(choose_family_suffix(family)) or (family is families[0] and not hook.endswith(others))
    )


def _wanted_setup(config: Config, cgroup: Path | None) -> ProgramSetup:
    listed = config.ebpf.clients not in ("", _ALL)
    paths = config.ebpf.clients.split(",") if listed and config.ebpf.clients != _NODE else []
    options = config.ebpf.connected_udp, config.ebpf.affinity
    settings = Settings(_read_node_cookie(), 0, 0, listed, config.counters.level, build().number, *options)
    wanted = ProgramSetup(
        settings,
        frozenset(map(_read_cookie, paths)),
        None if listed or cgroup is None else partial(find_pods, cgroup),
        tuple(map(Path, paths)) if listed else None,
    )
    wanted.look_for_pods()
    return wanted


def _require_namespaces(config: Config) -> None:
    """Raise UnsupportedError if this process may not end connected UDP sockets of Pods."""
    if config.ebpf.connected_udp and config.ebpf.clients != _NODE and "CAP_SYS_ADMIN" not in read_capabilities():
        raise UnsupportedError(
            "--ebpf-connected-udp ends sockets in the network namespaces of Pods, which needs the capability "
            "CAP_SYS_ADMIN and the node's processes (hostPID): add both, or use --ebpf-clients=node"
        )


def _read_cookie(path: str) -> int:
    try:
        return read_cookie_of(Path(path))
    except (OSError, struct.error) as error:
        raise ConfigError(f"--ebpf-clients: {path} must be all, node or a network namespace: {error}") from error


DRIVER: Final = Driver(
    build=_build_modes,
    supposed=lambda config, families: _build_modes(config, families, prepare=False),
    attempt=_probe_host,
    sysctls=lambda _: (),
    priorities=RULES.priorities,  # the programs decide before a packet exists
    kernel_counters={},
    cleaners=clean_by(_build_modes),
    owner=lambda _: None,
    remains=_find_remains,
    translates=_is_translating,
    wrap_backend=lambda backend, _others: backend,
)
