"""What the tools say when they refuse becomes an error that names the line, the rule and the Service."""

import pytest

from vipwire.errors import BusyError
from vipwire.modes.xtables.tool import build_restore_error

TEXT = """*nat
:KUBE-SEP-A - [0:0]
-A KUBE-SEP-A -p tcp -m comment --comment "ns1/svc1:p80 -> 10.1.0.1:80" -j NOWHERE
COMMIT
"""
LEGACY = """iptables-restore v1.8.9 (legacy): Couldn't load target `NOWHERE':No such file or directory

Error occurred at line: 3
Try `iptables-restore -h' or 'iptables-restore --help' for more information.
"""
NFT = """iptables-nft-restore v1.8.9 (nf_tables):
line 3: RULE_APPEND failed (No such file or directory): rule in chain A
"""


@pytest.mark.parametrize("said", [LEGACY, NFT], ids=["legacy", "nft"])
def test_a_refusal_names_the_line_the_rule_and_the_service(said: str) -> None:
    error = build_restore_error("iptables-x", said, TEXT, waited=5)
    assert "line 3 (Service port ns1/svc1:p80): -A KUBE-SEP-A" in str(error)
    assert "No such file or directory" in str(error)
    assert "--help" not in str(error)
    assert error.transaction == TEXT


@pytest.mark.parametrize("said", ["iptables-restore: out of memory", "line 99: strange", "line 0 failed", ""])
def test_a_refusal_without_a_line_still_has_its_words(said: str) -> None:
    error = build_restore_error("iptables-x", said, TEXT, waited=5)
    assert str(error) == f"iptables-x-restore: {said}"
    assert error.transaction == TEXT


def test_a_lock_that_is_not_given_up_names_its_holder() -> None:
    said = "Another app is currently holding the xtables lock. Stopped waiting after 5s.\n"
    error = build_restore_error("iptables-legacy", said, TEXT, waited=7)
    assert isinstance(error, BusyError)
    assert str(error).startswith("iptables-legacy-restore waited 7 s for the xtables lock, held by ")
