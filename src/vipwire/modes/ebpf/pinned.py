"""The maps, programs and links of one node, pinned in bpffs, so that they outlive vipwire.

    /sys/fs/bpf/vipwire/<node>/maps/frontends4 ...      their contents are this mode's state
                              /maps/settings            the constants of the programs
                              /programs/connect4 ...    the attached programs, for the next process to inspect
                              /links/connect4 ...       the next process replaces each link's program atomically
                              /netns/4026531840         the inode number of the network namespace

A node is a network namespace, named by its cookie, unique until a reboot. Its programs stay attached when it is
deleted: `remove_gone_nodes` removes them.
"""

import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from vipwire.linux.bpf import pins
from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.namespaces import find_gone, read_netns_inode
from vipwire.linux.bpf.programs import (
    HOOKS,
    BpfLink,
    Program,
    create_link,
    detach_link,
    load_program,
    read_link,
    read_program,
    update_link,
)
from vipwire.logging import log
from vipwire.modes.ebpf.layout import Settings
from vipwire.modes.ebpf.programs import build

ORDER: Final = (
    "sock_release",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "sendmsg4",
    "sendmsg6",
    "connect4",
    "connect6",
)
"""Programs that map sources back are attached before those that connect sockets, and detached after them."""
_SETTINGS: Final = "settings"
_OF_AFFINITY: Final = frozenset({"affinity4", "affinity6", "sticky4", "sticky6"})
_REMEMBERED: Final = 65536
"""The size of the affinity maps if programs serve session affinity; else 0."""


class NodePins:
    """A node's pins in bpffs. Opens each on demand, and pins new objects under these names."""

    def __init__(self, folder: Path, cgroup: Path | None) -> None:
        self.folder, self._cgroup = folder, cgroup
        self._maps: dict[str, Map] = {}
        self._loaded: tuple[bytes, dict[str, int]] | None = None

    @property
    def exists(self) -> bool:
        return self.folder.exists()

    def close(self) -> None:
        for each in self._maps.values():
            each.close()
        self._maps.clear()
        self._close_programs()

    def find(self, name: str) -> Map | None:
        """Open a map; None if it is missing or has another layout."""
        descriptor = pins.open_pinned(self.folder / "maps" / name)
        if descriptor is None:
            self._remove_pin(name)
            return None
        found = Map(descriptor)
        known = self._maps.get(name)
        if known is not None and known.number == found.number:
            found.close()
            return known
        self._remove_pin(name)
        if found.shape[:3] != build().object.maps[name][:3]:
            found.close()
            return None
        self._maps[name] = found
        return found

    def require_map(self, name: str) -> Map:
        """Return the map of the last look, without another one; the next look finds foreign changes."""
        return self._maps.get(name) or self.open_or_create(name)

    def open_or_create(self, name: str, at_least: int = 0) -> Map:
        """Open or create a map with room for `at_least` elements."""
        found = self.find(name)
        if found is not None and found.shape.max_entries >= at_least:
            return found
        shape = build().object.maps[name]
        if at_least:
            shape = shape._replace(max_entries=max(shape.max_entries, at_least))
        made = Map.create(f"vw_{name}", shape)
        pins.pin(made.descriptor, self.folder / "maps" / name)
        self._remove_pin(name)
        self._maps[name] = made
        self._close_programs()
        return made

    def settings(self) -> bytes | None:
        """Read the constants of the attached programs; None if there are none."""
        with pins.hold_pinned_open(self.folder / "maps" / _SETTINGS) as descriptor:
            return None if descriptor is None else Map(descriptor).lookup(bytes(4))

    def read_attached_programs(self) -> dict[str, bytes]:
        """Return the settings of the program at each hook, if it uses the maps under these names."""
        settings, numbers = self.settings(), self._list_map_numbers()
        found = {}
        for hook in HOOKS if settings is not None else ():
            running, link = self._read_attached_program(hook), self.link(hook)
            if running is None or link is None or settings is None:
                continue
            as_it_should = (running.number, self._read_cgroup_number() or link.cgroup, HOOKS[hook])
            uses = {numbers.get(name or _SETTINGS) for name in build().object.maps_of(f"cgroup/{hook}")}
            if link[1:] == as_it_should and link.cgroup and running.maps == uses:
                found[hook] = settings
        return found

    def link(self, hook: str) -> BpfLink | None:
        with pins.hold_pinned_open(self.folder / "links" / hook) as descriptor:
            return None if descriptor is None else read_link(descriptor)

    def attach_programs(self, hooks: Iterable[str], settings: bytes) -> None:
        """Attach programs with these settings to these hooks, and to hooks that have one already. Raise OSError."""
        if self._cgroup is None:
            raise ValueError("a reader cannot attach programs")
        (self.folder / "netns" / str(read_netns_inode())).mkdir(mode=0o700, parents=True, exist_ok=True)
        loaded = self._load_programs(settings)
        wanted = set(hooks) | {hook for hook in HOOKS if (self.folder / "links" / hook).exists()}
        target = os.open(self._cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for hook in ORDER:
                if hook in wanted:
                    self._attach_program(hook, loaded[hook], target)
                    pins.pin(loaded[hook], self.folder / "programs" / hook)
        finally:
            os.close(target)
        pins.pin(loaded[_SETTINGS], self.folder / "maps" / _SETTINGS)

    def detach_programs(self, hooks: Iterable[str]) -> None:
        wanted = set(hooks)
        for hook in reversed(ORDER):
            if hook not in wanted:
                continue
            path = self.folder / "links" / hook
            with (
                pins.hold_pinned_open(path) as descriptor,
                suppress(OSError),
            ):  # the kernel removed the link together with its cgroup
                if descriptor is not None:
                    detach_link(descriptor)
            for each in (path, self.folder / "programs" / hook):
                each.unlink(missing_ok=True)

    def remove(self) -> bool:
        """Remove all pins of the node; report whether any existed."""
        if not self.exists:
            return False
        self.detach_programs(HOOKS)
        self.close()
        shutil.rmtree(self.folder)
        with suppress(OSError):  # other nodes have folders in it
            self.folder.parent.rmdir()
        return True

    def _attach_program(self, hook: str, descriptor: int, target: int) -> None:
        path = self.folder / "links" / hook
        with pins.hold_pinned_open(path) as link:
            if link is not None:
                found = read_link(link)
                if found.cgroup == self._read_cgroup_number() and found.hook == HOOKS[hook]:
                    update_link(link, descriptor, hook)
                    return
                with suppress(OSError):
                    detach_link(link)
                path.unlink()
        made = create_link(descriptor, target, hook)
        pins.pin(made, path)
        os.close(made)

    def _load_programs(self, settings: bytes) -> Mapping[str, int]:
        if self._loaded is not None and self._loaded[0] == settings:
            return self._loaded[1]
        self._close_programs()
        binary = build().object
        room = _REMEMBERED if Settings.read(settings).affinity else 0
        maps = {
            name: self.open_or_create(name, room if name in _OF_AFFINITY else 0).descriptor for name in binary.maps
        }
        constants = Map.constants("vw_settings", settings)
        found = {_SETTINGS: constants.descriptor}
        self._loaded = (b"", found)
        for hook in HOOKS:
            section = f"cgroup/{hook}"
            code = binary.link_program(section, maps, constants.descriptor)
            found[hook] = load_program(hook, code, binary.licence, f"vw_{hook}")
        self._loaded = (settings, found)
        return found

    def _close_programs(self) -> None:
        if self._loaded is not None:
            for descriptor in self._loaded[1].values():
                os.close(descriptor)
        self._loaded = None

    def _remove_pin(self, name: str) -> None:
        if (known := self._maps.pop(name, None)) is not None:
            known.close()

    def _read_attached_program(self, hook: str) -> Program | None:
        with pins.hold_pinned_open(self.folder / "programs" / hook) as descriptor:
            return None if descriptor is None else read_program(descriptor)

    def _list_map_numbers(self) -> dict[str, int]:
        found = {name: each.number for name in build().object.maps if (each := self.find(name)) is not None}
        with pins.hold_pinned_open(self.folder / "maps" / _SETTINGS) as descriptor, suppress(struct.error):
            if descriptor is not None:
                found[_SETTINGS] = Map(descriptor).number
        return found

    def _read_cgroup_number(self) -> int:
        """Return the id of the cgroup to attach to, its folder's inode; 0 if unknown."""
        return self._cgroup.stat().st_ino if self._cgroup is not None else 0


class OtherNodes(NamedTuple):
    """The bpffs folders of deleted network namespaces, and the number of other nodes."""

    gone: tuple[NodePins, ...]
    others: int


def find_other_nodes(own: Path, ours: Path = pins.OURS) -> OtherNodes:
    """Distinguish deleted network namespaces' folders from the others. Raises no error."""
    folders: dict[Path, tuple[int, int] | None] = {}
    with suppress(OSError):
        folders = {folder: _namespace_of(folder) for folder in ours.iterdir() if folder != own}
    gone = find_gone(filter(None, folders.values())) if folders else frozenset()
    left = tuple(NodePins(folder, None) for folder, namespace in folders.items() if namespace in gone)
    return OtherNodes(left, len(folders) - len(left))


def _namespace_of(folder: Path) -> tuple[int, int] | None:
    """Read a network namespace's cookie and inode from its folder's names; None if the names have none."""
    inode = next(folder.glob("netns/[0-9]*"), None)
    try:
        return None if inode is None else (int(folder.name, 16), int(inode.name))
    except ValueError:  # no folder of vipwire's
        return None


def remove_gone_nodes(own: Path) -> int:
    removed = 0
    for each in find_other_nodes(own).gone:
        try:
            removed += each.remove()
        except OSError as error:
            log.warning("cannot remove the programs of a deleted network namespace", folder=each.folder, error=error)
    if removed:
        log.info("removed the programs of deleted network namespaces", namespaces=removed)
    return removed
