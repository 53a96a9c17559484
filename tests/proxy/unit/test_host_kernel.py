import errno
import os

import pytest

from vipwire.errors import UnsupportedError
from vipwire.linux.host import kernel
from vipwire.linux.host.kernel import KernelRelease, cpus, require_nftables


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
    assert cpus() >= 1


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
    with pytest.raises(UnsupportedError, match="nftables cannot be used here") as caught:
        require_nftables()
    assert says in str(caught.value)
