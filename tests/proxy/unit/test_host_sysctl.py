import errno
import os
from pathlib import Path

import pytest

from vipwire.errors import UnsupportedError
from vipwire.linux.host import kernel
from vipwire.linux.host.kernel import count_cpus, read_capabilities, require_net_admin, require_nftables
from vipwire.linux.host.kernel_release import KernelRelease
from vipwire.linux.host.settings import (
    SysctlChange,
    apply_sysctls,
    list_router_sysctls,
    read_sysctl,
    set_oom_score_adj,
    suggest_remedy,
)
from vipwire.model.sysctl import Sysctl, Want

FORWARD = Sysctl("net/ipv4/ip_forward", 1)
BUCKETS = Sysctl("net/netfilter/nf_conntrack_buckets", 1000, Want.AT_LEAST)


def put(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_what_differs_is_written_and_told(tmp_path: Path) -> None:
    file = put(tmp_path, FORWARD.path, "0\n")
    report = apply_sysctls([FORWARD], tmp_path)
    assert report.changed == (SysctlChange("net.ipv4.ip_forward", 0, 1),)
    assert report.obstacles == ()
    assert file.read_text() == "1\n"
    assert read_sysctl(FORWARD.path, tmp_path) == 1


def test_what_is_right_already_is_not_written(tmp_path: Path) -> None:
    file = put(tmp_path, FORWARD.path, "1\n")
    os.utime(file, ns=(1, 1))
    assert apply_sysctls([FORWARD], tmp_path) == ((), ())
    assert file.stat().st_mtime_ns == 1


@pytest.mark.parametrize(("present", "after"), [(999, 1000), (1000, 1000), (4096, 4096)])
def test_at_least_only_raises(tmp_path: Path, present: int, after: int) -> None:
    put(tmp_path, BUCKETS.path, f"{present}\n")
    apply_sysctls([BUCKETS], tmp_path)
    assert read_sysctl(BUCKETS.path, tmp_path) == after


def test_more_than_wanted_that_cannot_be_written_is_no_obstacle() -> None:
    # A setting of this kernel that nobody can write; its value is 65536.
    for value, want, obstacles in (
        (1, Want.EXACTLY_OR_MORE, 0),
        (1, Want.EXACTLY, 1),
        (1 << 30, Want.EXACTLY_OR_MORE, 1),
    ):
        report = apply_sysctls([Sysctl("kernel/ngroups_max", value, want)])
        assert (len(report.changed), len(report.obstacles)) == (0, obstacles)


def test_more_than_wanted_is_lowered_where_it_can_be(tmp_path: Path) -> None:
    put(tmp_path, FORWARD.path, "9\n")
    apply_sysctls([FORWARD._replace(want=Want.EXACTLY_OR_MORE)], tmp_path)
    assert read_sysctl(FORWARD.path, tmp_path) == 1


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("net/netfilter/nf_conntrack_max", "modprobe nf_conntrack"),
        ("net/ipv6/conf/all/forwarding", "ipv6.disable=1"),
        ("net/core/nothing", "no such setting"),
    ],
)
def test_a_setting_that_is_not_there_is_an_obstacle_and_the_others_are_set(
    tmp_path: Path, path: str, remedy: str
) -> None:
    put(tmp_path, FORWARD.path, "0\n")
    report = apply_sysctls([Sysctl(path, 1), FORWARD], tmp_path)
    assert len(report.changed) == 1
    (obstacle,) = report.obstacles
    assert obstacle.what == path.replace("/", ".")
    assert remedy in obstacle.remedy
    assert not (tmp_path / path).exists()


def test_a_setting_that_is_no_number_is_an_obstacle(tmp_path: Path) -> None:
    put(tmp_path, FORWARD.path, "32768\t60999\n")
    (obstacle,) = apply_sysctls([FORWARD], tmp_path).obstacles
    assert str(obstacle) == "net.ipv4.ip_forward: is not a number; look at /proc/sys/net/ipv4/ip_forward"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EROFS, "/run/host/proc/sys/net"),
        (errno.EACCES, "hostNetwork"),
        (errno.EPERM, "CAP_NET_ADMIN"),
        (errno.EINVAL, "does not accept the value 1000"),
    ],
)
def test_a_refused_write_has_a_remedy_for_its_reason(code: int, remedy: str) -> None:
    assert remedy in suggest_remedy(BUCKETS, code)


LEARNED = f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00450003     eth0\n"
STATIC = f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00000003     eth1\n"
PREFIX = f"fd00{'0' * 28} 40 {'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000 00040001     eth2\n"


def test_an_interface_with_a_learned_default_route_keeps_it_when_ipv6_is_forwarded(tmp_path: Path) -> None:
    put(tmp_path, "sys/net/ipv6/conf/all/forwarding", "0\n")
    put(tmp_path, "thread-self/net/ipv6_route", LEARNED + STATIC + PREFIX + LEARNED)
    assert list_router_sysctls(tmp_path) == (Sysctl("net/ipv6/conf/eth0/accept_ra", 2, Want.AT_LEAST),)


def test_a_machine_that_forwards_already_or_has_no_ipv6_is_left_alone(tmp_path: Path) -> None:
    assert list_router_sysctls(tmp_path) == ()
    put(tmp_path, "thread-self/net/ipv6_route", LEARNED)
    put(tmp_path, "sys/net/ipv6/conf/all/forwarding", "1\n")
    assert list_router_sysctls(tmp_path) == ()


def test_the_oom_score_is_set(tmp_path: Path) -> None:
    file = put(tmp_path, "self/oom_score_adj", "0\n")
    assert set_oom_score_adj(-999, tmp_path) is None
    assert file.read_text() == "-999\n"
    os.utime(file, (0, 0))
    assert set_oom_score_adj(-999, tmp_path) is None
    assert file.stat().st_mtime == 0  # a score that is there already takes no right


def test_this_process_may_make_itself_more_likely_to_be_killed_but_not_beyond_the_range() -> None:
    present = int(Path("/proc/self/oom_score_adj").read_text())
    assert set_oom_score_adj(present) is None
    obstacle = set_oom_score_adj(1001)
    assert obstacle is not None
    assert obstacle.remedy == "allowed are -1000 to 1000"


def test_a_score_without_proc_is_an_obstacle(tmp_path: Path) -> None:
    obstacle = set_oom_score_adj(-999, tmp_path)
    assert obstacle is not None
    assert obstacle.what == "oom_score_adj -999"


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("6.18.44-fc-v509", (6, 18, 44)),
        ("5.10.0-21-amd64", (5, 10, 0)),
        ("4.19-rc1+", (4, 19, 0)),
        ("5.15.167.4-microsoft-standard-WSL2", (5, 15, 167)),
    ],
)
def test_the_numbers_of_a_release(text: str, release: tuple[int, int, int]) -> None:
    assert KernelRelease.parse(text) == release


@pytest.mark.parametrize("text", ["", "linux", "6", "v6.1"])
def test_what_is_no_release_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="kernel release") as caught:
        KernelRelease.parse(text)
    assert repr(text) in str(caught.value)


def test_the_running_kernel_has_a_release_and_cpus() -> None:
    assert KernelRelease.running() >= KernelRelease(4, 0)
    assert count_cpus() >= 1


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EPERM, "CAP_NET_ADMIN"),
        (errno.EPROTONOSUPPORT, "CONFIG_NETFILTER_NETLINK"),
        (errno.EINVAL, "CONFIG_NF_TABLES"),
        (errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
)
def test_what_nftables_misses_is_said(monkeypatch: pytest.MonkeyPatch, code: int, says: str) -> None:
    class Refusing:
        def __init__(self, protocol: int) -> None:
            raise OSError(code, os.strerror(code), protocol)

    monkeypatch.setattr(kernel, "NetlinkSocket", Refusing)
    with pytest.raises(UnsupportedError, match="cannot use nftables") as caught:
        require_nftables()
    assert says in str(caught.value)


def proc(folder: Path, effective: str) -> Path:
    (folder / "self").mkdir()
    (folder / "self" / "status").write_text(f"Name:\tvipwire\nCapPrm:\tffffffff\n{effective}Seccomp:\t0\n")
    return folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CapEff:\t0000000000000000\n", set()),
        ("CapEff:\t0000000000001000\n", {"CAP_NET_ADMIN"}),
        ("CapEff:\t0000000001003000\n", {"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_RESOURCE"}),
        ("", set()),
    ],
)
def test_capabilities_are_those_in_force(tmp_path: Path, line: str, expected: set[str]) -> None:
    assert read_capabilities(proc(tmp_path, line)) == expected


def test_where_nothing_can_be_read_there_are_none(tmp_path: Path) -> None:
    assert read_capabilities(tmp_path) == frozenset()


def test_the_missing_capability_is_named_and_what_works_without(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        require_net_admin("vipwire cleanup", proc(tmp_path, "CapEff:\t0000000000002000\n"))
    said = str(caught.value)
    assert said.startswith("vipwire cleanup needs the capability CAP_NET_ADMIN: run it as root, or add NET_ADMIN")
    assert "`plan`" in said
