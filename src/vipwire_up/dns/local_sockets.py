"""Sockets that answer this machine only, at any of its addresses: a filter drops what comes in from elsewhere.

A machine's packets to itself come in at its loopback device, whatever their addresses. SO_BINDTODEVICE does not tell
them: a socket's device is compared with the one that the address belongs to (ip_route_output_key_hash_rcu). A classic
BPF filter sees the device that a packet came in by; a new connection's first packet passes it too (tcp_v4_rcv).
"""

import ctypes
import socket
import struct
from typing import Final

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h; the socket module does not have it
_LOOPBACK: Final = 1  # include/net/flow.h: LOOPBACK_IFINDEX, in every network namespace
_IFINDEX: Final = 0xFFFFF000 + 8  # linux/filter.h: SKF_AD_OFF + SKF_AD_IFINDEX
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM: Final = b"".join(
    _INSTRUCTION.pack(*each)
    for each in (
        (_LOAD, 0, 0, _IFINDEX),
        (_JUMP_EQUAL, 0, 1, _LOOPBACK),
        (_RETURN, 0, 0, 0xFFFFFFFF),  # all of the packet
        (_RETURN, 0, 0, 0),  # nothing of it
    )
)


def answer_this_machine_only(opened: socket.socket) -> None:
    """Restrict a socket to this machine's packets; before it is bound, so that none slips in. Raise OSError."""
    program = ctypes.create_string_buffer(_PROGRAM, len(_PROGRAM))
    head = struct.pack("@HP", len(_PROGRAM) // _INSTRUCTION.size, ctypes.addressof(program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)
