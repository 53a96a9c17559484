"""What ebpf mode does when the kernel refuses to write a map or load a program: nobody is misled, nothing is lost."""

import ctypes
import errno
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.values import node_plan
from tests.proxy.kernel.ebpf_maps import objects, own_pins, settings

from vipwire.config.configuration import Config
from vipwire.config.sections import EBPF
from vipwire.linux.bpf import maps, pins, programs
from vipwire.linux.bpf.programs import HOOKS
from vipwire.linux.bpf.syscall import BpfCommand, call_bpf
from vipwire.model.net import Family
from vipwire.modes.ebpf.driver import DRIVER, find_node_folder
from vipwire.modes.ebpf.kernel import LONGEST, EbpfBackend, ProgramSetup, Undone
from vipwire.modes.ebpf.layout import FRONTENDS, Ours, Settings
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.remarks import find_remarks, find_standing_remarks
from vipwire.modes.inspection import Remark
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.mode import MODE as NFTABLES
from vipwire.reconcile.delta import compute_delta

pytestmark = pytest.mark.kernel

Refuse = Callable[..., None]
FORTH = {"connect4", "connect6", "sendmsg4", "sendmsg6"}


@pytest.fixture
def backend(cgroup: Path) -> Iterator[EbpfBackend]:
    """The mode in a namespace of its own, with its programs in force and six frontends."""
    with own_pins(cgroup) as made:
        wanted = ProgramSetup(Settings.read(settings()))
        found = EbpfBackend(Family.IPV4, NftablesBackend(Family.IPV4), made, wanted, tuple(HOOKS))
        with closing(found):
            found.commit(compute_delta({}, {**found.render_node(node_plan()), **objects(Family.IPV4, 6)}))
            assert set(made.read_attached_programs()) == set(HOOKS)
            found.observe()
            yield found


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Have the kernel refuse some commands, until it is told to refuse none."""
    refused: dict[BpfCommand, int] = {}

    def called(command: BpfCommand, attributes: object) -> int:
        if command in refused:
            raise OSError(refused[command], os.strerror(refused[command]))
        return call_bpf(command, attributes)  # type: ignore[arg-type]

    for module in (maps, programs, pins):
        monkeypatch.setattr(module, "call_bpf", called)

    def refusing(*commands: BpfCommand, code: int = errno.ENOMEM) -> None:
        refused.clear()
        refused.update(dict.fromkeys(commands, code))

    return refusing


def ours(backend: EbpfBackend) -> Ours:
    """Read what is in the maps, without programs."""
    return {key: value for key, value in backend.observe().items() if key[0] == FRONTENDS}


def test_what_could_not_be_written_is_told_left_to_the_rules_and_tried_again(
    backend: EbpfBackend, refuse: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before, after = objects(Family.IPV4, 6), objects(Family.IPV4, 6, 3)
    refuse(BpfCommand.MAP_UPDATE, BpfCommand.UPDATE_BATCH)
    backend.commit(compute_delta(before, after))
    assert ours(backend) == {}, "an old pool would mislead"
    assert set(backend.pins.read_attached_programs()) == set(HOOKS)
    assert not backend.changed(), "it was nobody else"
    for _ in range(3):
        assert (backend.housekeeping_due() or 0) <= LONGEST
        backend.housekeep()
    assert ours(backend) == {}
    refuse()
    backend.housekeep()
    assert ours(backend) == after
    assert backend.housekeeping_due() is None
    assert not backend.changed()
    assert caplog.text.count("cannot write the programs' maps") == 1
    assert caplog.text.count("the programs' maps are complete again") == 1


def test_the_rules_have_their_turns_and_what_failed_is_not_tried_earlier_for_that(
    backend: EbpfBackend, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    monkeypatch.setattr(backend.rules, "housekeeping_due", lambda: 0.0)
    monkeypatch.setattr(backend.rules, "housekeep", lambda: turns.append("rules"))
    refuse(BpfCommand.MAP_UPDATE, BpfCommand.UPDATE_BATCH)
    backend.commit(compute_delta(objects(Family.IPV4, 6), objects(Family.IPV4, 6, 3)))
    assert backend.housekeeping_due() == 0.0
    monkeypatch.setattr(backend, "_write_or_note_failure", lambda _: turns.append("programs"))
    monkeypatch.setattr(Undone, "due", lambda *_: 7.0)
    backend.housekeep()
    assert turns == ["rules"]
    monkeypatch.setattr(Undone, "due", lambda *_: 0.0)
    backend.housekeep()
    assert turns == ["rules", "rules", "programs"]


def test_what_has_changed_meanwhile_is_written_as_it_is_now(backend: EbpfBackend, refuse: Refuse) -> None:
    first, second, third = objects(Family.IPV4, 6), objects(Family.IPV4, 8), objects(Family.IPV4, 3, 3)
    refuse(BpfCommand.MAP_UPDATE, BpfCommand.UPDATE_BATCH)
    backend.commit(compute_delta(first, second))
    refuse()
    backend.commit(compute_delta(second, third))
    backend.housekeep()
    assert ours(backend) == third


def test_programs_are_taken_out_of_force_where_a_map_cannot_be_corrected(
    backend: EbpfBackend, refuse: Refuse
) -> None:
    before, after = objects(Family.IPV4, 6), objects(Family.IPV4, 6, 3)
    refuse(BpfCommand.MAP_UPDATE, BpfCommand.UPDATE_BATCH, BpfCommand.MAP_DELETE)
    backend.commit(compute_delta(before, after))
    assert FORTH.isdisjoint(backend.pins.read_attached_programs())
    refuse()
    backend.housekeep()
    assert ours(backend) == after
    assert set(backend.pins.read_attached_programs()) == set(HOOKS)


def test_a_map_that_somebody_has_frozen_is_replaced(backend: EbpfBackend) -> None:
    before, after = objects(Family.IPV4, 6), objects(Family.IPV4, 7, 3)
    frozen = backend.pins.require_map("frontends4")
    call_bpf(BpfCommand.MAP_FREEZE, struct.pack("=I", frozen.descriptor))
    number = frozen.number
    backend.commit(compute_delta(before, after))
    assert ours(backend) == after
    assert backend.pins.require_map("frontends4").number != number
    assert set(backend.pins.read_attached_programs()) == set(HOOKS)


def test_status_says_how_programs_and_maps_stand(backend: EbpfBackend, cgroup: Path) -> None:
    config = replace(Config(), ebpf=EBPF(cgroup=str(cgroup)))

    def said() -> dict[str, str]:
        return {each.what: each.said for each in find_standing_remarks(config, backend.pins.folder)}

    whole = said()
    assert whole.keys() - {"other programs"} == {"in force", "maps of IPv4"}, "somebody may have some at the root"
    assert whole["in force"] == f"9 of 9 programs, for {cgroup}"
    assert "frontends4 6 of 16384, slots4 12 of 65536" in whole["maps of IPv4"]
    code = bytes.fromhex("b700000001000000" + "9500000000000000")
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    program = programs.load_program("connect4", code, "GPL", "theirs")
    theirs = programs.create_link(program, target, "connect4")
    for each in (program, target):
        os.close(each)
    backend.pins.detach_programs(["connect6"])
    assert said()["in force"] == f"8 of 9 programs, for {cgroup}; not connect6"
    assert said()["other programs"].startswith("other programs also run at connect4")
    os.close(theirs)
    backend.pins.remove()
    assert said()["in force"].startswith("0 of 9 programs")


def test_check_names_service_meshes_that_would_see_endpoints(
    backend: EbpfBackend, cgroup: Path, tmp_path: Path
) -> None:
    for number, name in enumerate(("init", "linkerd2-proxy", "pilot-agent", "envoy"), 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    (tmp_path / "9").mkdir()  # it has ended meanwhile

    def said(clients: str) -> list[Remark]:
        config = replace(Config(), ebpf=EBPF(cgroup=str(cgroup), clients=clients))
        found = list(find_remarks(config, backend.pins.folder, tmp_path))
        assert found[0].said == f"can be loaded, and attached to {cgroup}"
        return [each for each in found if each.what == "service mesh"]

    (mesh,) = said("all")
    assert mesh.said.startswith("Istio and Linkerd runs here")
    assert mesh.remedy == "use --ebpf-clients=node"
    assert said("node") == [], "who leaves Pods alone harms no sidecar"


def test_programs_whose_maps_were_replaced_are_not_left_in_force(backend: EbpfBackend, refuse: Refuse) -> None:
    """The maps have grown, and the programs for the larger ones are not loaded."""
    before, after = objects(Family.IPV4, 6), objects(Family.IPV4, 6, 3)
    call_bpf(BpfCommand.MAP_FREEZE, struct.pack("=I", backend.pins.require_map("frontends4").descriptor))
    refuse(BpfCommand.PROGRAM_LOAD)
    backend.commit(compute_delta(before, after))
    with closing(NodePins(backend.pins.folder, None)) as others:
        assert not any(others.link(hook) for hook in ("connect4", "sendmsg4"))
    refuse()
    backend.housekeep()
    assert ours(backend) == after
    assert set(backend.pins.read_attached_programs()) == set(HOOKS)


HOLDERS = ("a process", "a bind mount", "a socket")


def leave_programs(cgroup: Path, mount: Path, holder: str, stack: ExitStack) -> NodePins:
    """Put programs in force in a network namespace that only the holder holds from then on."""
    assert ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0  # CLONE_NEWNET, of this thread
    left = NodePins(find_node_folder(), cgroup)
    stack.callback(left.remove)
    left.attach_programs(HOOKS, settings())
    left.close()
    if holder == "a process":
        process = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(process.kill)
    elif holder == "a bind mount":
        run(f"mount --bind /proc/self/ns/net {mount}")
        stack.callback(run, f"umount {mount}")
    elif holder == "a socket":
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    return left


@pytest.fixture
def nodes(cgroup: Path, tmp_path: Path) -> Iterator[dict[str, NodePins]]:
    """What ended proxies have left in four network namespaces, by what holds the namespace."""
    (tmp_path / "netns").touch()
    with ExitStack() as stack, own_network():
        made = {}
        for holder in (*HOLDERS, "nothing"):
            with ThreadPoolExecutor(1) as thread:
                made[holder] = thread.submit(leave_programs, cgroup, tmp_path / "netns", holder, stack).result()
        yield made


@pytest.mark.parametrize("command", ["start in another mode", "cleanup"])
def test_programs_of_a_network_namespace_that_is_gone_are_removed_and_no_others(
    nodes: dict[str, NodePins], cgroup: Path, command: str
) -> None:
    config = replace(Config(), ebpf=EBPF(cgroup=str(cgroup)))
    before = {each.what: each.said for each in find_remarks(config, find_node_folder())}
    assert "deleted network namespaces" in before["programs left"]
    if command == "cleanup":
        subprocess.run([sys.executable, "-m", "vipwire", "cleanup"], check=True)
    else:
        left = DRIVER.remains(Family.IPV4, NFTABLES)
        assert left is not None
        left.remove_before_rules()
    assert not nodes["nothing"].exists
    assert all(set(nodes[holder].read_attached_programs()) == set(HOOKS) for holder in HOLDERS)
    assert "programs left" not in {each.what for each in find_remarks(config, find_node_folder())}


REMOVE = (
    "from pathlib import Path; from vipwire.modes.ebpf.pinned import remove_gone_nodes; remove_gone_nodes(Path())"
)


@pytest.mark.parametrize("without", ["the inode number", "CAP_SYS_ADMIN"])
def test_programs_stay_where_the_kernel_does_not_tell_whether_a_namespace_is_gone(
    nodes: dict[str, NodePins], without: str
) -> None:
    command = [sys.executable, "-c", REMOVE]
    if without == "CAP_SYS_ADMIN":
        command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *command]
    else:  # an earlier version has left the folder
        for each in nodes.values():
            shutil.rmtree(each.folder / "netns")
    subprocess.run(command, check=True)
    assert all(set(each.read_attached_programs()) == set(HOOKS) for each in nodes.values())
