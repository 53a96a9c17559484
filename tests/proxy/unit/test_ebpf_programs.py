"""The object of the programs: made of the source beside it, and laid out as the Python code has it."""

import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vipwire.config.sections import CounterLevel
from vipwire.errors import DecodeError
from vipwire.linux.bpf.elf import read_object
from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.ebpf import layout
from vipwire.modes.ebpf.programs import build

FOLDER = Path(layout.__file__).with_name("programs")


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("clang-14") is None, reason="the object is compared where Debian 12's clang-14 is installed"
)
def test_the_object_is_what_the_source_makes(tmp_path: Path) -> None:
    for path in FOLDER.iterdir():
        if path.suffix in (".c", ".h") or path.name == "Makefile":
            shutil.copy(path, tmp_path)
    made = subprocess.run(["make", "-s", "-C", str(tmp_path)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "vipwire.o").read_bytes() == (FOLDER / "vipwire.o").read_bytes()


STORES = {0x62: 4, 0x6A: 2, 0x72: 1, 0x7A: 8, 0x63: 4, 0x6B: 2, 0x73: 1, 0x7B: 8}
"""Instructions that write memory, of a constant or a register, and how many bytes."""
TWO_SLOTS = 0x18
FRAME = 10


def stack_writes(code: bytes) -> Iterator[tuple[int, int]]:
    """Tell where a program writes to its stack, and how many bytes."""
    at = 0
    while at < len(code):
        operation, registers, offset, _ = struct.unpack_from("<BBhi", code, at)
        if operation in STORES and registers & 15 == FRAME:
            yield offset, STORES[operation]
        at += 16 if operation == TWO_SLOTS else 8


@pytest.mark.parametrize("hook", HOOKS)
def test_no_word_of_the_stack_is_written_in_parts(hook: str) -> None:
    """From Linux 5.16 to 6.7 the verifier would want CAP_PERFMON: a part may be that of a register that is kept."""
    writes: dict[int, list[int]] = {}
    for offset, size in stack_writes(build().object.programs[f"cgroup/{hook}"]):
        writes.setdefault(offset & ~7, []).append(size)
    assert writes
    assert not {at: sizes for at, sizes in writes.items() if len(sizes) > 1 and min(sizes) < 8}


def test_there_is_a_program_for_each_hook() -> None:
    assert {f"cgroup/{hook}" for hook in HOOKS} == set(build().object.programs)


@pytest.mark.parametrize("family", list(Family), ids=str)
def test_sizes_are_those_of_the_maps(family: Family) -> None:
    maps, version = build().object.maps, layout.choose_family_suffix(family)
    address = parse_address("10.0.0.1" if family is Family.IPV4 else "fd00::1")
    key = layout.frontend_key(address, Protocol.TCP, 80)
    endpoint = layout.endpoint_slot(address, 80)[: layout.endpoint_size(family)]
    assert maps[f"frontends{version}"][1:3] == (len(key), layout.FRONTEND.size)
    assert maps[f"slots{version}"].value_size == layout.endpoint_size(family)
    assert layout.slot_size(family) == (layout.endpoint_size(family) + 7) & ~7
    assert maps[f"members{version}"].key_size == maps[f"counts{version}"].key_size == len(key + endpoint)
    assert maps[f"sticky{version}"][1:3] == (len(key + endpoint), 8)


def test_settings_are_as_large_as_the_programs_constants() -> None:
    settings = layout.Settings(1, 2, 3, listed=True, counting=CounterLevel.CONNECTIONS, build=4)
    assert len(settings.packed) == len(build().object.constants)
    for each in (settings, settings._replace(connected=True), settings._replace(affinity=True)):
        assert layout.Settings.read(each.packed) == each


def test_a_head_holds_flags_seconds_and_the_number_of_a_service_port() -> None:
    for head in (layout.Head(layout.Flag.NODE), layout.Head(layout.Flag.POD, 86400, 2**39 - 1)):
        assert layout.Head.read(head.packed + b"endpoints") == head
    assert layout.Head.read(layout.Head(layout.Flag.POD, 60, 2**39 + 7).packed).service_port == 7
    assert layout.Head(layout.Flag.POD).packed == layout.HEAD.pack(layout.Flag.POD)


def test_keys_and_endpoints_are_read_as_they_were_written() -> None:
    for text in ("10.96.0.1", "fd00:10:96::1"):
        address = parse_address(text)
        assert layout.read_frontend_key(layout.frontend_key(address, Protocol.UDP, 53)) == (address, 17, 53)
        assert layout.read_endpoint(layout.endpoint_slot(address, 8080)) == (address, 8080)


@pytest.mark.parametrize("size", [0, 5, 63, 64, 300, 4000, 20000])
def test_an_object_that_was_cut_off_is_refused(size: int) -> None:
    data = (FOLDER / "vipwire.o").read_bytes()[:size]
    with pytest.raises(DecodeError, match="object file"):
        read_object(data)
