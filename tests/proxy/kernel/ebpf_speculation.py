"""Loads the programs and prints where the verifier had to add speculation barriers.

`python -m tests.proxy.kernel.ebpf_speculation CGROUP` prints the operations before such barriers, one hook a line.
Run it with CAP_BPF and CAP_NET_ADMIN only: with CAP_PERFMON the verifier adds none.
"""

import ctypes
import json
import struct
import sys
from pathlib import Path

from vipwire.linux.bpf.programs import load_program
from vipwire.linux.bpf.syscall import read_object_info
from vipwire.modes.ebpf import probe

BARRIER = 0xC2
"""BPF_ST | BPF_NOSPEC, which only the verifier writes."""
_LENGTH, _PLACE, _SIZE = 20, 32, 232
"""Offsets in struct bpf_prog_info of the program's final length and buffer; its size."""


def translated(descriptor: int) -> list[int]:
    """Read a program's operations after the verifier."""
    code = ctypes.create_string_buffer(1 << 17)
    prepared = bytearray(_SIZE)
    struct.pack_into("=I8xQ", prepared, _LENGTH, len(code), ctypes.addressof(code))
    assert struct.calcsize("=I8x") == _PLACE - _LENGTH
    (length,) = struct.unpack_from("=I", read_object_info(descriptor, _SIZE, bytes(prepared)), _LENGTH)
    return list(code.raw[:length:8])


def loaded(hook: str, code: bytes, licence: str, name: str) -> int:
    descriptor = load_program(hook, code, licence, name)
    operations = translated(descriptor)
    barriers = [number for number, each in enumerate(operations) if each == BARRIER]
    before = [operations[number - 1] for number in barriers]
    sys.stdout.write(json.dumps({"hook": hook, "before": before}) + "\n")
    return descriptor


if __name__ == "__main__":
    vars(probe).update(load_program=loaded)
    probe.probe_kernel(Path(sys.argv[1]), affinity=True)
