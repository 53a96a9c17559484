"""The modes that the suite is run for: a new one is a module mode_*.py beside this one, and one more line here."""

from tests.conformance.mode import Mode
from tests.conformance.mode_nftables import NFTABLES

MODES: tuple[Mode, ...] = (*NFTABLES,)
