"""Encodes and decodes traffic control at ingress: interfaces with a qdisc there, and its filters.

Formats: include/uapi/linux/{rtnetlink,pkt_sched,pkt_cls}.h. Numbers are in host byte order.
"""

import struct
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import collect_attributes, decode_text

GET_QDISC, GET_FILTER = 38, 46
_MESSAGE: Final = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info
_INGRESS, _INGRESS_FILTERS = 0xFFFFFFF1, 0xFFFFFFF2
"""TC_H_INGRESS, and TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS), which the qdisc `ingress` accepts, too."""
_KIND, _OPTIONS, _BPF_NAME = 1, 2, 7


def encode_list_qdiscs() -> bytes:
    return _MESSAGE.pack(0, 0, 0, 0, 0)


def encode_list_filters(number: int) -> bytes:
    return _MESSAGE.pack(0, number, 0, _INGRESS_FILTERS, 0)


def decode_ingress(payload: memoryview) -> int:
    """Decode the interface from an answer to a GET_QDISC dump; 0 for a qdisc that is not at ingress."""
    if len(payload) < _MESSAGE.size:
        raise DecodeError("rtnetlink qdisc message is cut short")
    _, number, _, parent, _ = _MESSAGE.unpack_from(payload)
    return number if parent == _INGRESS else 0


def decode_filter(payload: memoryview) -> str:
    """Return a filter's kind and its bpf program's name, from an answer to a GET_FILTER dump."""
    if len(payload) < _MESSAGE.size:
        raise DecodeError("rtnetlink filter message is cut short")
    found = collect_attributes(payload, _MESSAGE.size)
    kind = decode_text(found.get(_KIND, memoryview(b"")))
    if kind != "bpf" or _OPTIONS not in found:
        return kind
    name = collect_attributes(found[_OPTIONS]).get(_BPF_NAME)
    return kind if name is None else f"{kind} {decode_text(name)}"
