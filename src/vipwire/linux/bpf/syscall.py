"""The bpf(2) system call by ctypes, without a library. All modules of this folder call bpf(2) through it.

Source: bpf(2), and union bpf_attr in include/uapi/linux/bpf.h. Fields that a command does not name are 0.
"""

import ctypes
import enum
import errno
import os
import platform
import struct
from typing import Any, Final

from vipwire.errors import UnsupportedError

NUMBERS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280, "ppc64le": 361}
"""The call's number by architecture. The programs' object file is for little-endian machines."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Buffer = ctypes.Array[ctypes.c_char]


class BpfCommand(enum.IntEnum):
    """The commands that vipwire uses (enum bpf_cmd)."""

    MAP_CREATE = 0
    MAP_LOOKUP = 1
    MAP_UPDATE = 2
    MAP_DELETE = 3
    PROGRAM_LOAD = 5
    PIN = 6
    OPEN_PINNED = 7
    PROGRAM_ATTACH = 8
    PROGRAM_DETACH = 9
    INFO = 15
    QUERY = 16
    BTF_LOAD = 18
    MAP_FREEZE = 22
    LOOKUP_BATCH = 24
    UPDATE_BATCH = 26
    LINK_CREATE = 28
    LINK_UPDATE = 29
    LINK_DETACH = 34


def require_architecture() -> None:
    """Raise UnsupportedError if bpf(2)'s number is unknown here, or the machine is big-endian."""
    if platform.machine() not in NUMBERS:
        known = ", ".join(NUMBERS)
        raise UnsupportedError(f"the programs of ebpf mode run on {known}; this is {platform.machine()}")


def call_bpf(command: BpfCommand, attributes: bytes | Buffer) -> int:
    """Make the call, again after EINTR. Raise OSError. The kernel writes its answer into a buffer."""
    buffer = buffer_of(attributes) if isinstance(attributes, bytes) else attributes
    number = NUMBERS[platform.machine()]
    while True:
        result = int(_LIBC.syscall(number, int(command), buffer, len(buffer)))
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, f"{os.strerror(code)} (bpf {command.name})")


def buffer_of(data: bytes | int) -> Buffer:
    """Make a buffer of these bytes, or of this number of zeros."""
    if isinstance(data, int):
        return ctypes.create_string_buffer(data)
    return ctypes.create_string_buffer(data, len(data))


def address_of(data: bytearray | Buffer) -> int:
    """Return the address of a buffer, which must outlive the call; 0 for an empty one."""
    if not len(data):
        return 0
    if isinstance(data, bytearray):
        return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
    return ctypes.addressof(data)


def read_object_info(descriptor: int, size: int = 256, prepared: bytes = b"") -> bytes:
    """Return the kernel's description of a map, a program or a link. `prepared` is the buffer's initial content."""
    data = buffer_of(prepared + bytes(size - len(prepared)))
    attributes = buffer_of(struct.pack("=IIQ", descriptor, size, address_of(data)))
    call_bpf(BpfCommand.INFO, attributes)
    (length,) = struct.unpack_from("=I", attributes, 4)
    return data.raw[:length]


def mount_filesystem(source: str, target: str, kind: str, options: str) -> None:
    words: list[Any] = [source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(0), options.encode()]
    if _LIBC.mount(*words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
