"""Who is a Pod to the programs of ebpf mode: a process below kubelet's cgroup, in a network namespace of its own."""

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.own_network import own_network
from tests.fakes.values import node_plan
from tests.proxy.conformance import own_cgroup

from vipwire.config.configuration import Config
from vipwire.config.sections import EBPF
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.pins import pin
from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.ebpf import driver
from vipwire.modes.ebpf.cgroup import find_cgroup, find_pods
from vipwire.modes.ebpf.driver import DRIVER
from vipwire.modes.ebpf.kernel import EbpfBackend
from vipwire.modes.ebpf.layout import FRONTENDS, HEAD, Flag, Settings, endpoint_slot, frontend_key
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.reconciler import Reconciler

pytestmark = pytest.mark.kernel

VIP, PORT = ("10.96.0.10", 80), 8080
_NEW_NETWORK = 0x40000000


@pytest.fixture
def pods() -> Iterator[Path]:
    """A Pod's cgroup, below one that kubelet might have made."""
    with own_cgroup.entered() as own:
        made = own / "kubelet.slice" / "kubelet-kubepods.slice" / "pod1"
        made.mkdir(parents=True)
        try:
            yield made
        finally:
            for each in (made, made.parent, made.parent.parent):
                each.rmdir()


@pytest.fixture
def node(request: pytest.FixtureRequest, pods: Path) -> Iterator[EbpfBackend]:
    """A node with programs that know one Service; whoever is translated connects to his own loopback address."""
    chosen = EBPF(cgroup=str(own_cgroup.path()), clients=getattr(request, "param", "all"))
    with own_network():
        built = DRIVER.build(replace(Config(), ebpf=chosen), [Family.IPV4], prepare=True)
        backend = built[Family.IPV4]
        assert isinstance(backend, EbpfBackend)
        key = FRONTENDS, frontend_key(parse_address(VIP[0]), Protocol.TCP, VIP[1])
        value = HEAD.pack(Flag.NODE | Flag.POD) + endpoint_slot(parse_address("127.0.0.1"), PORT)
        backend.tables.commit(Delta(added={key: value}))
        backend.pins.attach_programs(HOOKS, backend.wanted.settings.packed)
        try:
            yield backend
        finally:
            assert backend.delete()
            backend.close()
    assert pods.exists()


def is_translated(cgroup: Path | None, *, own_namespace: bool) -> bool:
    """Connect to the Service from a process in that cgroup, and in a namespace of its own."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            if own_namespace:
                ctypes.CDLL(None).unshare(_NEW_NETWORK)
                subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            with socket.create_server(("127.0.0.1", PORT)), socket.socket() as client:
                client.settimeout(5)
                status = int(client.connect_ex(VIP) != 0)
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(ended)
    assert status in (0, 1)
    return status == 0


@pytest.mark.usefixtures("node")
def test_a_pod_is_told_by_kubelets_cgroup(pods: Path) -> None:
    assert is_translated(pods, own_namespace=True)
    assert not is_translated(None, own_namespace=True), "a container that is no Pod"
    assert is_translated(None, own_namespace=False), "a process of the node"
    assert is_translated(pods, own_namespace=False), "a Pod with the node's network"


@pytest.mark.parametrize("node", ["node"], indirect=True)
@pytest.mark.usefixtures("node")
def test_pods_are_left_alone_where_only_the_node_is_asked_for(pods: Path) -> None:
    assert not is_translated(pods, own_namespace=True)
    assert is_translated(None, own_namespace=False)


def test_the_cgroup_of_pods_is_found_by_kubelets_names(pods: Path) -> None:
    found = find_pods(own_cgroup.path())
    assert found.number == pods.parent.stat().st_ino
    assert found.level == 3


def test_kubelets_cgroup_may_be_made_late_and_made_anew() -> None:
    """As when kubelet starts after vipwire, or starts with another driver of cgroups."""
    with own_cgroup.entered() as own, own_network():
        chosen = replace(Config(), ebpf=EBPF(cgroup=str(own)))
        backend = DRIVER.build(chosen, [Family.IPV4], prepare=True)[Family.IPV4]
        assert isinstance(backend, EbpfBackend)
        reconciler: Reconciler[Any, Any] = Reconciler(backend)
        reconciler.desire_node(backend.render_node(node_plan()))
        try:
            for path in (None, own / "kubepods", own / "kubepods.slice"):
                if path is not None:
                    path.mkdir()
                    assert reconciler.verify()
                reconciler.sync()
                assert not reconciler.verify()
                assert backend.pins.read_attached_programs().keys() == HOOKS.keys()
                held = Settings.read(backend.pins.settings() or b"")
                assert (held.pods_cgroup, held.pods_level) == ((path.stat().st_ino, 2) if path else (0, 0))
                if path is not None:
                    path.rmdir()
        finally:
            backend.delete()
            backend.close()


def test_a_folder_that_is_no_cgroup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder of cgroup2"):
        find_cgroup(str(tmp_path))


def test_connected_udp_sockets_of_pods_need_a_right_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "read_capabilities", lambda: frozenset({"CAP_BPF", "CAP_NET_ADMIN"}))
    asked = replace(Config(), ebpf=EBPF(connected_udp=True))
    with pytest.raises(UnsupportedError, match=r"CAP_SYS_ADMIN.*hostPID"):
        DRIVER.build(asked, [Family.IPV4], prepare=True)


def test_who_only_looks_sees_the_programs_as_they_are_wanted(node: EbpfBackend) -> None:
    """A command has the proxy's flags, and finds kubelet's cgroup as the proxy did."""
    chosen = EBPF(cgroup=str(own_cgroup.path()))
    looking = DRIVER.build(replace(Config(), ebpf=chosen), [Family.IPV4], prepare=False)[Family.IPV4]
    assert isinstance(looking, EbpfBackend)
    try:
        assert looking.wanted == node.wanted
        assert looking.wanted.knows_pods
        assert looking.pins.read_attached_programs() == dict.fromkeys(HOOKS, node.wanted.settings.packed)
    finally:
        looking.close()


def test_settings_of_another_version_are_not_taken_for_ours(node: EbpfBackend) -> None:
    """As while another version runs: a command that looks finds programs that are not as it would have them."""
    before = node.wanted.settings
    node.pins.attach_programs((), before._replace(affinity=True).packed)
    node.adopt_settings(frozenset())
    assert node.wanted.settings == before._replace(affinity=True)
    older = Map.constants("older", before.packed[:-8])
    pin(older.descriptor, node.pins.folder / "maps" / "settings")
    older.close()
    node.wanted.settings = before
    node.adopt_settings(frozenset())
    assert node.wanted.settings == before
