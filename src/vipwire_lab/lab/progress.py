"""How far a TCP connection came that nobody answered in time: what tells a lost packet from a silent server. Pure.

The kernel's tcp_info of the client's socket says it (include/uapi/linux/tcp.h): whether the handshake was completed,
how often something was sent again, and what was acknowledged.
"""

import struct

_STATE = struct.Struct("=B")
_UNACKED_AT, _REPEATED_AT, _RECEIVED_AT, _UNSENT_AT = 24, 100, 128, 144
_UNSIGNED, _LONG = struct.Struct("=I"), struct.Struct("=Q")
SIZE = _UNSENT_AT + _UNSIGNED.size
"""Bytes of tcp_info that are needed; Linux 4.6 has them all."""
_ESTABLISHED, _SYN_SENT = 1, 2


def progress(info: bytes, unread: int = 0) -> str:
    """Say how far it came, "" if the kernel tells less than that. `unread` are bytes that wait in the socket."""
    if len(info) < SIZE:
        return ""
    (state,) = _STATE.unpack_from(info)
    unacknowledged, repeated, unsent = (
        _UNSIGNED.unpack_from(info, place)[0] for place in (_UNACKED_AT, _REPEATED_AT, _UNSENT_AT)
    )
    (received,) = _LONG.unpack_from(info, _RECEIVED_AT)
    again = f"sent again {repeated} times" if repeated else "not sent again"
    if state == _SYN_SENT:
        return f"its SYN has no answer, {again}"
    where = "connected" if state == _ESTABLISHED else f"in TCP state {state}"
    if unread:
        return f"{where}, {unread} bytes of an answer have come and are not read"
    if unsent:
        return f"{where}, {unsent} bytes of what it said have not been sent"
    if unacknowledged:
        return f"{where}, what it said is not acknowledged, {again}"
    return f"{where}, what it said is acknowledged, {received} bytes have come"
