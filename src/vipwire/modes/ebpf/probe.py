"""Tries whether the kernel loads and attaches the programs, for a moment and with empty maps.

The error names the missing feature and the remedy.
"""

import errno
import os
from pathlib import Path
from typing import Final

from vipwire.config.sections import CounterLevel
from vipwire.errors import UnsupportedError
from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.programs import HOOKS, create_link, list_attached, load_program
from vipwire.linux.host.kernel import read_capabilities
from vipwire.modes.ebpf.layout import Settings
from vipwire.modes.ebpf.programs import build

_REFUSED: Final = frozenset({errno.EPERM, errno.EACCES})
_NEEDED: Final = ("CAP_BPF", "CAP_NET_ADMIN")
_FEW: Final = 16


def probe_kernel(cgroup: Path, *, affinity: bool = False) -> None:
    """Raise UnsupportedError if this process cannot attach the programs to this cgroup.

    `affinity` also tries that part: the verifier skips code that a constant turns off.
    """
    opened: list[int] = []
    try:
        maps = _create_probe_maps(opened)
        settings = Settings(0, 0, 0, listed=True, counting=CounterLevel.NOTHING, build=0, affinity=affinity)
        constants = Map.constants("vw_trial", settings.packed)
        opened.append(constants.descriptor)
        target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        opened.append(target)
        for hook in HOOKS:
            opened.append(_load_probe(hook, maps, constants.descriptor))
            opened.append(_attach_probe(hook, opened[-1], target, cgroup))
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


def _create_probe_maps(opened: list[int]) -> dict[str, int]:
    found = {}
    for name, shape in build().object.maps.items():
        small = shape._replace(max_entries=min(shape.max_entries, _FEW))
        try:
            made = Map.create("vw_trial", small)
        except OSError as error:
            raise _explain_refusal(error, f"the kernel refuses the map {name}") from error
        opened.append(made.descriptor)
        found[name] = made.descriptor
    return found


def _load_probe(hook: str, maps: dict[str, int], constants: int) -> int:
    binary = build().object
    try:
        return load_program(hook, binary.link_program(f"cgroup/{hook}", maps, constants), binary.licence, "vw_trial")
    except OSError as error:
        what = f"the kernel does not load the program for {hook}"
        notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
        said = [line for line in notes if line.strip() and not line.startswith("processed ")]
        if said and error.errno == errno.EACCES:
            raise UnsupportedError(
                f"ebpf mode cannot run here: {what} for a process without CAP_PERFMON; its verifier says: "
                f"{said[-1]}: add that capability"
            ) from error
        last = f"; its verifier says: {said[-1]}" if said else ""
        raise _explain_refusal(error, f"{what}{last}") from error


def _attach_probe(hook: str, program: int, target: int, cgroup: Path) -> int:
    try:
        return create_link(program, target, hook)
    except OSError as error:
        if error.errno in _REFUSED and (owner := find_exclusive_cgroup(cgroup, hook)) is not None:
            raise UnsupportedError(
                f"ebpf mode cannot run here: the hook {hook} of {owner} has another owner's program, attached "
                "without BPF_F_ALLOW_MULTI: see `bpftool cgroup tree`"
            ) from error
        raise _explain_refusal(error, f"the kernel does not attach the program for {hook} to {cgroup}") from error


def find_exclusive_cgroup(cgroup: Path, hook: str) -> Path | None:
    """Find a program, at this cgroup or an ancestor, that excludes other programs from a hook; return its cgroup."""
    for path in (cgroup, *cgroup.parents):
        if not (path / "cgroup.procs").exists():
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            numbers, flags = list_attached(descriptor, hook)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if numbers and not flags:
            return path
    return None


def _explain_refusal(error: OSError, what: str) -> UnsupportedError:
    match error.errno:
        case code if code in _REFUSED:
            remedy = explain_bpf_refusal()
        case errno.ENOSYS | errno.EINVAL:
            remedy = "it needs CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF"
        case _:
            remedy = f"it answers {error.strerror}"
    return UnsupportedError(f"ebpf mode cannot run here: {what} ({errno.errorcode.get(error.errno or 0)}): {remedy}")


def explain_bpf_refusal(proc: Path = Path("/proc")) -> str:
    """Explain the kernel's refusal, as far as this process can know the reason."""
    held = read_capabilities(proc)
    held |= {"CAP_BPF"} if "CAP_SYS_ADMIN" in held else set()
    if missing := [each for each in _NEEDED if each not in held]:
        return (
            f"ebpf mode needs the capabilities {' and '.join(_NEEDED)} (or root), and this process lacks {missing[0]}"
        )
    if _is_seccomp_filtered(proc):
        return (
            "this process has the capabilities, but also a seccomp profile: allow bpf(2) in the profile, as "
            "containerd 1.7 and Docker 23 do, or set seccompProfile to Unconfined"
        )
    return (
        "this process has the capabilities: check for a user namespace of its own, or a security module (SELinux, "
        "AppArmor)"
    )


def _is_seccomp_filtered(proc: Path) -> bool:
    try:
        return "\nSeccomp:\t2\n" in (proc / "self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
