"""Programs of cgroups, and the links that attach them to the sockets of a cgroup.

A link is attached while a descriptor or a name refers to it (`pins`), or until its cgroup is deleted. LINK_UPDATE
replaces its program atomically. The kernel compares program types there, not hooks: the caller must compare those.
"""

import ctypes
import errno
import struct
from typing import Final, NamedTuple

from vipwire.linux.bpf.syscall import BpfCommand, address_of, buffer_of, call_bpf, read_object_info

HOOKS: Final = {
    "connect4": 10,
    "connect6": 11,
    "sendmsg4": 14,
    "sendmsg6": 15,
    "recvmsg4": 19,
    "recvmsg6": 20,
    "getpeername4": 29,
    "getpeername6": 30,
    "sock_release": 34,
}
"""The hooks of programs, by attachment number (enum bpf_attach_type)."""
_SOCKET, _SOCKET_ADDRESS = 9, 18
"""BPF_PROG_TYPE_CGROUP_SOCK, with a socket as context, and BPF_PROG_TYPE_CGROUP_SOCK_ADDR, with an address too."""
_LOG: Final = 1 << 20
_MOST: Final = 64
"""The most programs of a cgroup's hook."""
_EFFECTIVE: Final = 1
_TCX_INGRESS: Final = 46


class BpfLink(NamedTuple):
    """A link: the attached program, the cgroup (0 once deleted) and the hook."""

    number: int
    program: int
    cgroup: int
    hook: int


class Program(NamedTuple):
    """A program: its number, its name, and the numbers of its maps."""

    number: int
    name: str
    maps: frozenset[int]


def load_program(hook: str, code: bytes, licence: str, name: str) -> int:
    """Load a program for a hook; return its descriptor. Raise OSError, with the verifier's log as a note."""
    try:
        return _load_with_log(hook, code, licence, name, None)
    except OSError as refused:
        log = buffer_of(_LOG)
        try:
            return _load_with_log(hook, code, licence, name, log)
        except OSError:
            refused.add_note(log.value.decode(errors="replace")[-3000:])
            raise refused from None


def _load_with_log(hook: str, code: bytes, licence: str, name: str, log: "ctypes.Array[ctypes.c_char] | None") -> int:
    instructions, text = buffer_of(code), buffer_of(licence.encode() + b"\0")
    logging = (1, len(log), address_of(log)) if log is not None else (0, 0, 0)
    attributes = struct.pack(
        "=IIQQIIQII16sII",
        _SOCKET if hook == "sock_release" else _SOCKET_ADDRESS,
        len(code) // 8,
        address_of(instructions),
        address_of(text),
        *logging,
        0,
        0,
        name.encode()[:15],
        0,
        HOOKS[hook],
    )
    return call_bpf(BpfCommand.PROGRAM_LOAD, attributes)


def read_program(descriptor: int) -> Program:
    maps = (ctypes.c_uint32 * _MOST)()
    prepared = bytearray(64)
    struct.pack_into("=IQ", prepared, 52, _MOST, ctypes.addressof(maps))
    data = read_object_info(descriptor, 256, bytes(prepared))
    number, count = *struct.unpack_from("=I", data, 4), *struct.unpack_from("=I", data, 52)
    name = data[64:80].rstrip(b"\0").decode(errors="replace")
    return Program(number, name, frozenset(maps[: min(count, _MOST)]))


def create_link(program: int, cgroup: int, hook: str) -> int:
    """Attach a program to a cgroup, both by their descriptors; return the link's descriptor."""
    return call_bpf(BpfCommand.LINK_CREATE, struct.pack("=IIII32x", program, cgroup, HOOKS[hook], 0))


def update_link(link: int, program: int, hook: str) -> None:
    """Replace a link's program atomically. Raise ValueError if the link belongs to another hook."""
    if read_link(link).hook != HOOKS[hook]:
        raise ValueError(f"the link is not that of {hook}")
    call_bpf(BpfCommand.LINK_UPDATE, struct.pack("=IIII", link, program, 0, 0))


def detach_link(link: int) -> None:
    """Detach a link, even if other processes have it open."""
    call_bpf(BpfCommand.LINK_DETACH, struct.pack("=I", link))


def read_link(descriptor: int) -> BpfLink:
    data = read_object_info(descriptor)
    _, number, running = struct.unpack_from("=III", data)
    cgroup, hook = struct.unpack_from("=QI", data, 16)
    return BpfLink(number, running, cgroup, hook)


def list_attached(cgroup: int, hook: str, *, effective: bool = False) -> tuple[tuple[int, ...], int]:
    """List the numbers of a cgroup's programs in order, and the flags with which they were attached.

    `effective`: those that the kernel calls for its sockets, including programs of the cgroups above.
    """
    return _query_programs(cgroup, HOOKS[hook], _EFFECTIVE if effective else 0)


def list_tcx_programs(number: int) -> tuple[int, ...]:
    return _query_programs(number, _TCX_INGRESS, 0)[0]


def _query_programs(place: int, hook: int, mode: int) -> tuple[tuple[int, ...], int]:
    room = _MOST
    while True:
        numbers = (ctypes.c_uint32 * room)()
        # The kernel writes the last field, `revision`, even if the given size ends before it.
        attributes = buffer_of(struct.pack("=IIIIQII32x", place, hook, mode, 0, ctypes.addressof(numbers), room, 0))
        try:
            call_bpf(BpfCommand.QUERY, attributes)
            break
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            room *= 2  # each of the cgroups above may have as many
    (flags,) = struct.unpack_from("=I", attributes, 12)
    (count,) = struct.unpack_from("=I", attributes, 24)
    return tuple(numbers[:count]), flags
