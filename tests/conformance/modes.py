"""The modes that the suite is run for: a new one is a module mode_*.py beside this one, and one more line here.

This machine's kernel runs HERE. One that has IPVS is booted for GUEST: see tests/kernel/test_ipvs_guest.py.
"""

from tests.conformance.mode import Mode
from tests.conformance.mode_iptables import IPTABLES
from tests.conformance.mode_ipvs import IPVS
from tests.conformance.mode_nftables import NFTABLES
from tests.conformance.mode_userspace import USERSPACE

from vipwire.lab import kernel

HERE: tuple[Mode, ...] = (*NFTABLES, *IPTABLES, *USERSPACE)
GUEST: tuple[Mode, ...] = (*IPVS,)
MODES = GUEST if kernel.inside() else HERE
