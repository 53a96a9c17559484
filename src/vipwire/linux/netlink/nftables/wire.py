"""The numbers of nf_tables: include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h."""

import enum
import errno
import struct
from typing import Final

from vipwire.model.net import Family

SUBSYSTEM = 10
ABSENT: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT})
"""The errors of a kernel without nf_tables or without nfnetlink (nfnetlink_rcv_msg of net/netfilter/nfnetlink.c)."""
BATCH_BEGIN = 0x10
BATCH_END = 0x11
BATCH_GENERATION = 1

NFPROTO = {Family.IPV4: 2, Family.IPV6: 10}

_HEADER = struct.Struct(">BBH")  # struct nfgenmsg: family, version, resource


def encode_header(family: int, resource: int = 0) -> bytes:
    """Encode the four bytes that begin every nfnetlink payload."""
    return _HEADER.pack(family, 0, resource)


class MessageType(enum.IntEnum):
    """Message types, with the subsystem in their upper byte."""

    NEWTABLE = 0xA00
    GETTABLE = 0xA01
    DELTABLE = 0xA02
    NEWCHAIN = 0xA03
    GETCHAIN = 0xA04
    DELCHAIN = 0xA05
    NEWRULE = 0xA06
    GETRULE = 0xA07
    DELRULE = 0xA08
    NEWSET = 0xA09
    GETSET = 0xA0A
    DELSET = 0xA0B
    NEWSETELEM = 0xA0C
    GETSETELEM = 0xA0D
    DELSETELEM = 0xA0E
    NEWGEN = 0xA0F
    GETGEN = 0xA10
    NEWFLOWTABLE = 0xA16
    GETFLOWTABLE = 0xA17
    DELFLOWTABLE = 0xA18


class SetFlag(enum.IntFlag):
    """NFTA_SET_FLAGS."""

    ANONYMOUS = 0x1
    CONSTANT = 0x2
    INTERVAL = 0x4
    MAP = 0x8
    TIMEOUT = 0x10
    EVAL = 0x20  # nft calls this flag `dynamic`: rules may add elements
    OBJECT = 0x40
    CONCAT = 0x80
    EXPR = 0x100


class Code(enum.IntEnum):
    """The code of a verdict (enum nft_verdicts, and nf_hook verdicts for the first two)."""

    DROP = 0
    ACCEPT = 1
    CONTINUE = -1
    BREAK = -2
    JUMP = -3
    GOTO = -4
    RETURN = -5


DATA_VERDICT = 0xFFFFFF00  # NFTA_SET_DATA_TYPE of a verdict map
ELEMENT_INTERVAL_END = 0x1

TABLE_NAME, TABLE_FLAGS, TABLE_HANDLE, TABLE_USERDATA = 1, 2, 4, 6
CHAIN_TABLE, CHAIN_HANDLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_TYPE = 1, 2, 3, 4, 5, 7
HOOK_NUMBER, HOOK_PRIORITY, HOOK_DEVICE, HOOK_DEVICES = 1, 2, 3, 4
RULE_TABLE, RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS = 1, 2, 3, 4
RULE_COMPATIBLE, COMPATIBLE_PROTOCOL, COMPATIBLE_FLAGS = 5, 1, 2
SET_TABLE, SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_LENGTH = 1, 2, 3, 4, 5
SET_DATA_TYPE, SET_DATA_LENGTH, SET_DESCRIPTION, SET_ID, SET_TIMEOUT = 6, 7, 9, 10, 11
SET_GC_INTERVAL, SET_USERDATA, SET_HANDLE, SET_EXPRESSION, SET_COUNT = 12, 13, 16, 17, 20
DESCRIPTION_SIZE, DESCRIPTION_CONCAT = 1, 2
ELEMENTS_TABLE, ELEMENTS_SET, ELEMENTS_LIST = 1, 2, 3
ELEMENT_KEY, ELEMENT_DATA, ELEMENT_FLAGS, ELEMENT_TIMEOUT, ELEMENT_EXPIRATION = 1, 2, 3, 4, 5
ELEMENT_USERDATA, ELEMENT_EXPRESSION, ELEMENT_KEY_END = 6, 7, 10
DATA_VALUE, DATA_VERDICT_ATTRIBUTE = 1, 2
VERDICT_CODE, VERDICT_CHAIN = 1, 2
LIST_ELEMENT = 1
FLOWTABLE_TABLE, FLOWTABLE_NAME, FLOWTABLE_HOOK, FLOWTABLE_FLAGS = 1, 2, 3, 7
FLOWTABLE_HOOK_NUMBER, FLOWTABLE_HOOK_PRIORITY, FLOWTABLE_HOOK_DEVICES, DEVICE_NAME = 1, 2, 3, 1
FLOWTABLE_COUNTER = 2
GENERATION_ID, GENERATION_PROCESS, GENERATION_PROCESS_NAME = 1, 2, 3
