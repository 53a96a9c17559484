"""Runs the tests of ipvs mode under a kernel that has IPVS: packets, and all of docs/semantics.md; see `guests`.

To run some of them by hand:
`python -m vipwire_lab.guest_kernel -- python -m pytest tests/proxy/conformance -k affinity`.
"""

import sys
from pathlib import Path

import pytest
from tests.proxy.kernel.guests import SUITES, Guests, Suite

from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.modes.ipvs.kernel import IpvsBackend

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(4000)]  # two boots; see `guests`


@pytest.mark.parametrize("suite", SUITES, ids=str)
def test_in_the_guest(guests: Guests, suite: Suite) -> None:
    verdict = guests.verdict(suite)
    if " rerun" in verdict.said:
        print(f"in the guest of {suite}:\n{verdict.said[-6000:]}", file=sys.__stderr__)
    assert not verdict.failed, "\n\n".join(verdict.failed)
    assert verdict.passed > 0, f"nothing was tested; the guest said:\n{verdict.said[-6000:]}"
    assert verdict.status == 0, verdict.said[-6000:]


def test_a_kernel_without_ipvs_is_told_what_to_load() -> None:
    if Path("/proc/net/ip_vs").exists():
        pytest.skip("this machine's own kernel has IPVS: that its absence is named cannot be seen here")
    with pytest.raises(UnsupportedError, match=r"load the module ip_vs .* linux-modules-extra"):
        IpvsBackend(Family.IPV4)
