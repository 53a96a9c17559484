"""ebpf mode under a kernel in lockdown (confidentiality), which forbids reading its memory.

A guest's kernel cannot be unlocked again, so by hand: `python -m vipwire_lab.guest_kernel --full -- python -m pytest
tests/proxy/kernel/full/lockdown.py`. The programs read only the arguments of their hooks.
"""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from tests.fakes.own_network import run
from tests.proxy.kernel.ebpf_maps import own_folder, own_pins, settings, write

from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.ebpf.layout import FRONTENDS, HEAD, Flag, endpoint_slot, frontend_key
from vipwire.modes.ebpf.probe import probe_kernel
from vipwire.modes.ebpf.tables import Tables

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(600)]

LOCKDOWN = Path("/sys/kernel/security/lockdown")
VIP, PORT = "10.96.0.10", 80


def test_programs_are_loaded_and_lead_sockets_in_a_kernel_that_is_locked_down() -> None:
    if not LOCKDOWN.exists():
        run("mount -t securityfs securityfs /sys/kernel/security")
    LOCKDOWN.write_text("confidentiality")
    assert "[confidentiality]" in LOCKDOWN.read_text()
    with own_folder() as cgroup, own_pins(cgroup) as pins:
        probe_kernel(cgroup)
        with socket.create_server(("127.0.0.1", 0)) as server, closing(Tables(Family.IPV4, pins)) as tables:
            end = endpoint_slot(parse_address("127.0.0.1"), server.getsockname()[1])
            key = FRONTENDS, frontend_key(parse_address(VIP), Protocol.TCP, PORT)
            write(tables, {}, {key: HEAD.pack(Flag.NODE) + end})
            pins.attach_programs(HOOKS, settings())
            with socket.create_connection((VIP, PORT), timeout=60) as client:
                assert client.getpeername() == (VIP, PORT)
