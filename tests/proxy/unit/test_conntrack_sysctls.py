import pytest
from msgspec.structs import replace

from vipwire.config.sections import Conntrack
from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl, Want
from vipwire.proxy_daemon.start.machine import compute_conntrack_max, list_conntrack_sysctls, list_forwarding_sysctls

NOTHING = Conntrack(max_per_core=0, min=0, tcp_established_timeout=0.0, tcp_close_wait_timeout=0.0)


@pytest.mark.parametrize(
    ("per_core", "minimum", "cpus", "size"),
    [
        (0, 131072, 8, 0),  # zero per CPU leaves it to the kernel, whatever the minimum
        (10, 0, 8, 80),
        (10, 100, 8, 100),
        (10, 80, 8, 80),
        (32768, 131072, 2, 131072),
        (32768, 131072, 4, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 32, 1048576),
        (32768, 131072, 128, 1048576),
        (32768, 2000000, 8, 2000000),
        (32768, 2000000, 128, 2000000),
    ],
)
def test_the_size_of_the_table(per_core: int, minimum: int, cpus: int, size: int) -> None:
    assert compute_conntrack_max(per_core, minimum, cpus) == size


def test_the_defaults_of_kube_proxy() -> None:
    assert list_conntrack_sysctls(Conntrack(), cpus=2) == (
        Sysctl("net/netfilter/nf_conntrack_max", 131072, Want.EXACTLY_OR_MORE),
        Sysctl("net/netfilter/nf_conntrack_buckets", 32768, Want.AT_LEAST),
        Sysctl("net/netfilter/nf_conntrack_tcp_timeout_established", 86400),
        Sysctl("net/netfilter/nf_conntrack_tcp_timeout_close_wait", 3600),
    )


def test_zero_leaves_the_kernels_values() -> None:
    assert list_conntrack_sysctls(NOTHING, cpus=64) == ()


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        (replace(NOTHING, tcp_established_timeout=5.0), "nf_conntrack_tcp_timeout_established", 5),
        (replace(NOTHING, tcp_close_wait_timeout=300.9), "nf_conntrack_tcp_timeout_close_wait", 300),
        (replace(NOTHING, tcp_be_liberal=True), "nf_conntrack_tcp_be_liberal", 1),
        (replace(NOTHING, udp_timeout=25.0), "nf_conntrack_udp_timeout", 25),
        (replace(NOTHING, udp_stream_timeout=0.25), "nf_conntrack_udp_timeout_stream", 1),
    ],
)
def test_each_setting_alone(settings: Conntrack, path: str, value: int) -> None:
    assert list_conntrack_sysctls(settings, cpus=2) == (Sysctl(f"net/netfilter/{path}", value),)


def test_forwarding_is_wanted_for_the_families_that_are_proxied() -> None:
    ipv4, ipv6 = Sysctl("net/ipv4/ip_forward", 1), Sysctl("net/ipv6/conf/all/forwarding", 1)
    assert list_forwarding_sysctls([Family.IPV4]) == (ipv4,)
    assert list_forwarding_sysctls([Family.IPV4, Family.IPV6]) == (ipv4, ipv6)


def test_a_setting_is_named_as_sysctl_names_it() -> None:
    assert Sysctl("net/ipv4/ip_forward", 1).name == "net.ipv4.ip_forward"
    assert Sysctl("net/ipv6/conf/eth0.5/accept_ra", 2).name == "net.ipv6.conf.eth0/5.accept_ra"
