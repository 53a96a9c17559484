"""The modes of the suite: a new one is a module mode_*.py beside this one, and one more line here.

HERE runs on this machine's kernel, GUEST in a booted one with IPVS: see tests/proxy/kernel/test_ipvs_guest.py.
Debian's own kernel, in an emulator, can run both: choose by `-k`, as docs/kernels.md does.
"""

from dataclasses import replace

from tests.proxy.conformance.mode import Mode
from tests.proxy.conformance.mode_ebpf import EBPF
from tests.proxy.conformance.mode_iptables import IPTABLES
from tests.proxy.conformance.mode_ipvs import IPVS
from tests.proxy.conformance.mode_nftables import NFTABLES, OFFLOADING
from tests.proxy.conformance.mode_userspace import USERSPACE

from vipwire_lab import guest_kernel

HERE: tuple[Mode, ...] = (*NFTABLES, *IPTABLES, *USERSPACE, *EBPF)
GUEST: tuple[Mode, ...] = (*IPVS,)
_PATIENT = ("--conntrack-udp-timeout=600s", "--conntrack-udp-timeout-stream=900s")
"""In the emulator a proxy may need longer to start than the 30 s that a flow of two datagrams lives."""
MODES = {
    None: HERE,
    guest_kernel.GuestKernel.USER_MODE: GUEST,
    # Sixteen times slower: one family for each test, unless VIPWIRE_CONFORMANCE=whole.
    guest_kernel.GuestKernel.DISTRIBUTION: tuple(
        replace(mode, sampled=True, flags=(*mode.flags, *_PATIENT))
        for mode in (*GUEST, *NFTABLES, *OFFLOADING, *IPTABLES, *EBPF)
    ),
}[guest_kernel.current_guest_kernel()]
