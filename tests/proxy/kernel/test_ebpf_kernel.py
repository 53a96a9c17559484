"""Programs, maps and links of ebpf mode, in a real kernel: what was written is what is read."""

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network
from tests.proxy.kernel.ebpf_maps import objects, settings, write

from vipwire.config.configuration import Config
from vipwire.config.sections import EBPF
from vipwire.errors import UnsupportedError
from vipwire.inspect.check import facts
from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.pins import open_pinned, pin
from vipwire.linux.bpf.programs import HOOKS, create_link, list_attached, load_program, read_link, update_link
from vipwire.linux.bpf.syscall import BpfCommand, call_bpf
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.ebpf import probe as trying
from vipwire.modes.ebpf.layout import (
    FRONTENDS,
    HEAD,
    Flag,
    Ours,
    Settings,
    choose_family_suffix,
    endpoint_slot,
    frontend_key,
)
from vipwire.modes.ebpf.pinned import ORDER, NodePins
from vipwire.modes.ebpf.probe import explain_bpf_refusal, probe_kernel
from vipwire.modes.ebpf.programs import build
from vipwire.modes.ebpf.tables import SlotsFullError, Tables
from vipwire.reconcile.delta import Delta, apply_delta, compute_delta

pytestmark = pytest.mark.kernel

FAMILIES = pytest.mark.parametrize("family", list(Family), ids=str)


@FAMILIES
@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda each: each.label)
def test_what_was_written_is_read(pins: NodePins, family: Family, protocol: Protocol) -> None:
    tables, have = Tables(family, pins), Ours()
    for services, ends in ((3, 2), (40, 3), (40, 1), (0, 0), (7, 5)):
        want = objects(family, services, ends, protocol)
        write(tables, have, want)
        assert tables.observe() == want
        have = want
    with closing(NodePins(pins.folder, None)) as others:
        assert Tables(family, others).observe() == have


@FAMILIES
def test_maps_that_have_become_too_small_are_replaced(pins: NodePins, family: Family) -> None:
    tables, few = Tables(family, pins), objects(family, 3, protocol=Protocol.UDP)
    for name in ("frontends", "slots", "members"):
        shape = build().object.maps[f"{name}{'4' if family is Family.IPV4 else '6'}"]
        made = Map.create("small", shape._replace(max_entries=8))
        pin(made.descriptor, pins.folder / "maps" / f"{name}{'4' if family is Family.IPV4 else '6'}")
        made.close()
    write(tables, {}, few)
    many = objects(family, 30, protocol=Protocol.UDP)
    delta = compute_delta(few, many)
    with pytest.raises(SlotsFullError):
        tables.commit(delta)
    tables.enlarge_maps(apply_delta(few, delta))
    assert tables.observe() == many


def test_programs_are_put_in_force_and_found_by_the_next_process(pins: NodePins, cgroup: Path) -> None:
    assert pins.read_attached_programs() == {}
    pins.attach_programs(HOOKS, settings())
    assert pins.read_attached_programs() == dict.fromkeys(HOOKS, settings())
    before = {hook: pins.link(hook) for hook in HOOKS}
    pins.close()
    with closing(NodePins(pins.folder, cgroup)) as later:
        assert later.read_attached_programs() == dict.fromkeys(HOOKS, settings())
        later.attach_programs(["connect4"], settings())
        after = {hook: later.link(hook) for hook in HOOKS}
        assert later.read_attached_programs() == dict.fromkeys(HOOKS, settings())
    for hook, link in after.items():
        had = before[hook]
        assert link is not None
        assert had is not None
        assert link.number == had.number, "the link stays, and has another program"
        assert link.program != had.program


def test_a_program_that_is_out_of_force_or_uses_other_maps_is_noticed(pins: NodePins) -> None:
    pins.attach_programs(HOOKS, settings())
    pins.detach_programs(["connect6"])
    assert set(pins.read_attached_programs()) == set(HOOKS) - {"connect6"}
    (pins.folder / "maps" / "frontends4").unlink()
    pins.open_or_create("frontends4")
    assert {"connect4", "sendmsg4"}.isdisjoint(pins.read_attached_programs())
    pins.attach_programs(HOOKS, settings())
    assert set(pins.read_attached_programs()) == set(HOOKS)


def test_there_is_room_for_who_is_remembered_once_that_is_asked_for(pins: NodePins) -> None:
    """What was remembered stays when programs are loaded anew, and when it is asked for no more."""
    names = [name + choose_family_suffix(family) for name in ("affinity", "sticky") for family in Family]
    plain = settings()
    asked = Settings.read(plain)._replace(affinity=True).packed
    pins.attach_programs(HOOKS, plain)
    assert {pins.require_map(name).shape.max_entries for name in names} == {1}
    pins.attach_programs((), asked)
    assert pins.read_attached_programs() == dict.fromkeys(HOOKS, asked)
    assert {pins.require_map(name).shape.max_entries for name in names} == {65536}
    numbers = [pins.require_map(name).number for name in names]
    for each in (plain, asked):
        pins.attach_programs((), each)
        assert [pins.require_map(name).number for name in names] == numbers


def test_the_cgroup_has_nothing_of_ours_when_it_is_removed(pins: NodePins, cgroup: Path) -> None:
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        pins.attach_programs(HOOKS, settings())
        assert all(list_attached(target, hook)[0] for hook in HOOKS)
        assert pins.remove()
        assert not pins.remove()
        assert not any(list_attached(target, hook)[0] for hook in HOOKS)
    finally:
        os.close(target)


def test_a_link_takes_only_a_program_of_its_hook(pins: NodePins) -> None:
    pins.attach_programs(HOOKS, settings())
    link = open_pinned(pins.folder / "links" / "connect4")
    other = open_pinned(pins.folder / "programs" / "sendmsg4")
    assert link is not None
    assert other is not None
    with pytest.raises(ValueError, match="not that of sendmsg4"):
        update_link(link, other, "sendmsg4")
    assert read_link(link).hook == HOOKS["connect4"]
    os.close(link)
    os.close(other)


def test_no_connection_fails_while_programs_are_swapped(pins: NodePins) -> None:
    """Of a thousand swaps none is noticed by those who connect meanwhile."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        vip = ("10.96.0.10", 80)
        want: Ours = {
            (FRONTENDS, frontend_key(parse_address(vip[0]), Protocol.TCP, 80)): HEAD.pack(Flag.NODE)
            + endpoint_slot(parse_address("127.0.0.1"), server.getsockname()[1])
        }
        Tables(Family.IPV4, pins).commit(Delta(added=want))
        for _ in range(125):
            pins.close()
            pins.attach_programs(ORDER, settings())
            with socket.create_connection(vip, timeout=5) as client:
                assert client.getpeername() == vip
                server.accept()[0].close()


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_process_that_is_killed_between_writes_misleads_nobody(pins: NodePins, cgroup: Path, steps: int) -> None:
    """It is killed before its n-th call of bpf(2) of a change. A new one converges; until then it is old or new."""
    have, want = objects(Family.IPV4, 6), objects(Family.IPV4, 9, 3, Protocol.TCP)
    write(Tables(Family.IPV4, pins), {}, have)
    child = os.fork()
    if child == 0:
        _killed_after(steps, pins, compute_delta(have, want))
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    with closing(NodePins(pins.folder, cgroup)) as later:
        tables = Tables(Family.IPV4, later)
        seen = tables.observe()
        assert all(value in (have.get(key), want.get(key)) for key, value in seen.items())
        write(tables, seen, want)
        assert tables.observe() == want


def _killed_after(steps: int, pins: NodePins, delta: Delta[tuple[str, bytes], bytes]) -> None:
    """Carry out a change in a process of its own, and end it by SIGKILL before a call."""
    left = [steps]

    def counted(command: BpfCommand, attributes: object) -> int:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return call_bpf(command, attributes)  # type: ignore[arg-type]

    try:
        for module in ("maps", "programs", "pins"):
            vars(sys.modules[f"vipwire.linux.bpf.{module}"])["call_bpf"] = counted
        Tables(Family.IPV4, pins).commit(delta)
        pins.attach_programs(HOOKS, settings())
    finally:
        os._exit(0)


def lacks(cgroup: Path) -> str:
    """Ask `vipwire check` for what is missing for this mode, while another one is configured."""
    with own_network():
        return facts.find_missing_requirement(
            replace(Config(), mode="nftables", ebpf=EBPF(cgroup=str(cgroup))), "ebpf"
        )


def test_the_probe_leaves_nothing_and_tells_of_an_exclusive_program(cgroup: Path) -> None:
    probe_kernel(cgroup)
    assert lacks(cgroup) == ""
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    assert not any(list_attached(target, hook)[0] for hook in HOOKS)
    code = bytes.fromhex("b700000001000000" + "9500000000000000")
    theirs = load_program("connect4", code, "GPL", "theirs")
    call_bpf(BpfCommand.PROGRAM_ATTACH, struct.pack("=IIIII12x", target, theirs, HOOKS["connect4"], 0, 0))
    try:
        with pytest.raises(UnsupportedError, match=r"connect4.*another owner's program"):
            probe_kernel(cgroup)
        assert "has another owner's program" in lacks(cgroup)
    finally:
        call_bpf(BpfCommand.PROGRAM_DETACH, struct.pack("=IIII", target, theirs, HOOKS["connect4"], 0))
        os.close(theirs)
    beside = create_link(load_program("connect4", code, "GPL", "theirs"), target, "connect4")
    probe_kernel(cgroup)
    os.close(beside)
    os.close(target)


def test_all_programs_are_listed_that_a_cgroup_and_the_one_above_it_have(cgroup: Path) -> None:
    below = cgroup / "below"
    below.mkdir()
    opened = [os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in (cgroup, below)]
    outer, inner = opened
    try:
        code = bytes.fromhex("b700000001000000" + "9500000000000000")
        opened.append(program := load_program("connect4", code, "GPL", "theirs"))
        opened.extend(create_link(program, target, "connect4") for target in (outer, inner) for _ in range(40))
        assert len(list_attached(inner, "connect4")[0]) == 40
        assert len(list_attached(inner, "connect4", effective=True)[0]) >= 80
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)
        below.rmdir()


@pytest.mark.parametrize(
    ("kept", "said"), [("bpf,net_admin", ""), ("bpf", "CAP_NET_ADMIN"), ("net_admin", "CAP_BPF")], ids=str
)
def test_two_capabilities_are_enough_and_one_is_not(cgroup: Path, kept: str, said: str) -> None:
    code = (
        "import sys; from pathlib import Path; from vipwire.modes.ebpf.probe import probe_kernel\n"
        "from vipwire.errors import UnsupportedError\n"
        "try: probe_kernel(Path(sys.argv[1])); probe_kernel(Path(sys.argv[1]), affinity=True)\n"
        "except UnsupportedError as error: print(error)\n"
    )
    done = with_capabilities(kept, "-c", code, str(cgroup))
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert bool(done.stdout) is bool(said)


def with_capabilities(kept: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with these capabilities alone."""
    only = ",".join(f"+{each}" for each in kept.split(","))
    command = ["setpriv", f"--bounding-set=-all,{only}", f"--inh-caps=-all,{only}", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


STORES = {0x63, 0x6B, 0x73, 0x7B, 0x62, 0x6A, 0x72, 0x7A}


def test_verifiers_before_6_16_take_the_programs_of_a_process_without_cap_perfmon(cgroup: Path) -> None:
    """They follow each condition both ways, as a processor may that guesses, and refuse what is wrong on any way.

    Later ones stop the processor there. After a store to the stack all of them do that, for another reason.
    """
    done = with_capabilities("bpf,net_admin", "-m", "tests.proxy.kernel.ebpf_speculation", str(cgroup))
    assert done.returncode == 0, done.stderr
    found = {each["hook"]: set(each["before"]) for each in map(json.loads, done.stdout.splitlines())}
    assert set(found) == set(HOOKS)
    assert {hook: before - STORES for hook, before in found.items() if before - STORES} == {}


@pytest.mark.parametrize(
    ("held", "seccomp", "said"),
    [
        ("0000000000001000", 0, "lacks CAP_BPF"),
        ("0000008000000000", 2, "lacks CAP_NET_ADMIN"),
        ("0000008000001000", 2, "but also a seccomp profile: allow bpf"),
        ("0000000000201000", 0, "check for a user namespace of its own"),
    ],
)
def test_what_is_refused_for_want_of_rights_says_which(tmp_path: Path, held: str, seccomp: int, said: str) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tvipwire\nCapEff:\t{held}\nSeccomp:\t{seccomp}\nSpeculation:\t0\n")
    assert said in explain_bpf_refusal(tmp_path)


def test_a_verifier_that_wants_more_rights_is_quoted(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError(errno.EACCES, "Permission denied")
    refused.add_note(
        "6: (6b) *(u16 *)(r10 -68) = r1\nattempt to corrupt spilled pointer on stack\nprocessed 7 insns\n"
    )

    def load(*_: object) -> int:
        raise refused

    monkeypatch.setattr(trying, "load_program", load)
    with pytest.raises(UnsupportedError, match=r"without CAP_PERFMON.*spilled pointer on stack: add that cap"):
        probe_kernel(cgroup)


FILTERED = """
import ctypes, platform, struct, sys
from pathlib import Path
from vipwire.modes.ebpf.probe import probe_kernel
from vipwire.linux.bpf import syscall
from vipwire.errors import UnsupportedError
number = syscall.NUMBERS[platform.machine()]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
steps = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
filter = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(steps)))
assert ctypes.CDLL(None).prctl(22, 2, filter, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER: bpf(2) gives EPERM
try:
    probe_kernel(Path(sys.argv[1]))
except UnsupportedError as error:
    print(error)
"""


def test_a_process_that_a_filter_keeps_from_bpf_is_told_so(cgroup: Path) -> None:
    """With all rights, as in a container whose profile does not admit bpf(2)."""
    done = subprocess.run([sys.executable, "-c", FILTERED, str(cgroup)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "EPERM" in done.stdout
    assert "a seccomp profile" in done.stdout


def test_programs_may_be_loaded_whatever_their_licence(pins: NodePins) -> None:
    """No helper is used that is for the GPL only."""
    binary = build().object
    maps = {name: pins.open_or_create(name).descriptor for name in binary.maps}
    everything = Settings.read(settings())._replace(connected=True, affinity=True)
    constants = Map.constants("constants", everything.packed)
    for hook in HOOKS:
        os.close(
            load_program(
                hook, binary.link_program(f"cgroup/{hook}", maps, constants.descriptor), "Proprietary", "test"
            )
        )
    constants.close()
    with suppress(OSError):
        pins.close()


def test_a_map_of_another_layout_is_replaced_and_the_rest_is_kept(pins: NodePins) -> None:
    """As after an upgrade: what is remembered in sockets stays, programs are loaded anew."""
    told = pins.open_or_create("told4").number
    shape = build().object.maps["frontends4"]
    other = Map.create("older", shape._replace(value_size=shape.value_size + 8))
    pin(other.descriptor, pins.folder / "maps" / "frontends4")
    other.close()
    tables, want = Tables(Family.IPV4, pins), objects(Family.IPV4, 5)
    assert tables.observe() == {}
    write(tables, {}, want)
    pins.attach_programs(HOOKS, settings())
    assert tables.observe() == want
    assert set(pins.read_attached_programs()) == set(HOOKS)
    assert pins.open_or_create("told4").number == told
