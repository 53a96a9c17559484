"""A kernel of its own for one command: what the command says and how it ends, and that nothing keeps the guest."""

import io
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from vipwire_lab import guest_kernel
from vipwire_lab.guest_kernel.machines import Emulated
from vipwire_lab.namespaces.errors import LabError

pytestmark = pytest.mark.kernel


def booting(kind: guest_kernel.GuestKernel) -> Any:
    """A parameter that is skipped where such a kernel cannot be booted, naming what to install."""
    why = guest_kernel.find_obstacle(kind)
    unable = pytest.mark.skipif(bool(why), reason=f"no kernel of the kind {kind.value} can be booted: {why}")
    return pytest.param(kind, marks=unable, id=kind.value)


every_kind = pytest.mark.parametrize("kind", [booting(kind) for kind in guest_kernel.GuestKernel])


class Listening(io.BytesIO):
    """A sink that tells when something was said."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def write(self, data: object) -> int:
        self.heard.set()
        return super().write(data)  # type: ignore[arg-type]


@every_kind
def test_a_command_is_heard_and_its_status_returned_whatever_it_leaves_behind(kind: guest_kernel.GuestKernel) -> None:
    """A process that outlives the command holds its output open, and must not hold the guest."""
    out, err = io.BytesIO(), io.BytesIO()
    script = "sleep 3000 & cat /sys/class/net/lo/operstate; cat /proc/net/ip_vs; seq 99999; echo bad >&2; exit 7"
    assert guest_kernel.run_in_guest(["sh", "-c", script], guest_kernel.Guest(kind=kind), stdout=out, stderr=err) == 7
    lines = out.getvalue().decode().splitlines()
    assert lines[0] == "unknown"
    assert lines[1].startswith("IP Virtual Server")
    assert lines[-99999:] == [str(number) for number in range(1, 100000)]
    assert err.getvalue() == b"bad\n"


@every_kind
def test_changes_vanish_with_the_guest_but_for_those_that_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory, kind: guest_kernel.GuestKernel
) -> None:
    kept, lost = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("lost")
    script = (
        f"import pathlib\nfor each in {str(kept)!r}, {str(lost)!r}: pathlib.Path(each, 'file').write_text('here')"
    )
    assert (
        guest_kernel.run_in_guest([sys.executable, "-c", script], guest_kernel.Guest(writable=(kept,), kind=kind))
        == 0
    )
    assert (kept / "file").read_text() == "here"
    assert not (lost / "file").exists()


@every_kind
def test_a_guest_that_nobody_waits_for_is_ended(kind: guest_kernel.GuestKernel) -> None:
    guest, out = guest_kernel.Guest(kind=kind), Listening()

    def give_up() -> None:
        out.heard.wait()
        guest.given_up.set()

    thread = threading.Thread(target=give_up, daemon=True)
    thread.start()
    with pytest.raises(LabError, match="was stopped; its console said"):
        guest_kernel.run_in_guest(["sh", "-c", "echo here; exec sleep 3000"], guest, stdout=out, stderr=io.BytesIO())


@every_kind
def test_a_silent_guest_is_ended_and_its_console_shows_why(
    kind: guest_kernel.GuestKernel,
) -> None:
    guest = guest_kernel.Guest(silence=25.0, kind=kind)
    with pytest.raises(LabError, match=r"(?s)was ended after 25 s without a word.*Call Trace"):
        guest_kernel.run_in_guest(["sleep", "3000"], guest, stdout=io.BytesIO(), stderr=io.BytesIO())


@pytest.mark.parametrize("kind", [booting(guest_kernel.GuestKernel.DISTRIBUTION)])
def test_the_kernel_of_the_distribution_has_nftables_and_programs_beside_ipvs(kind: guest_kernel.GuestKernel) -> None:
    out = io.BytesIO()
    nft = "nft 'add table ip a; add chain ip a b { type nat hook prerouting priority -100; }' && nft list ruleset"
    ipvs = "ipvsadm -A -t 192.0.2.1:80 && ipvsadm -Sn"
    mounted = "stat -f -c %T /sys/fs/cgroup /sys/fs/bpf"
    done = guest_kernel.run_in_guest(
        ["sh", "-c", f"{nft} && {ipvs} && {mounted}"], guest_kernel.Guest(kind=kind), stdout=out
    )
    assert done == 0
    assert "cgroup2fs\nbpf_fs\n" in out.getvalue().decode()
    assert "type nat hook prerouting" in out.getvalue().decode()
    assert "-A -t 192.0.2.1:80" in out.getvalue().decode()


def test_what_is_missing_for_the_kernel_of_the_distribution_is_named(tmp_path: Path) -> None:
    why = Emulated(tmp_path).find_obstacle()
    assert "qemu-system-x86" in why or ("linux-image-amd64" in why and "scripts/setup kernel" in why)
