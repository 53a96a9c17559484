"""The variant is chosen by what is in the tables; and a small memory of clients is said."""

from pathlib import Path

import pytest

from vipwire.backends.iptables.probe import affinity_note, decide
from vipwire.xtables.variant import Variant

NFT_EMPTY = "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"
RULES = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -j DROP\nCOMMIT\n"
KUBELET = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n"
PROXY = "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"


@pytest.mark.parametrize(
    ("nft", "legacy", "plain", "chosen", "both"),
    [
        (NFT_EMPTY, NFT_EMPTY, Variant.LEGACY, Variant.LEGACY, False),
        (NFT_EMPTY, NFT_EMPTY, None, Variant.NFT, False),
        (RULES, NFT_EMPTY, Variant.LEGACY, Variant.NFT, False),
        (RULES, PROXY, Variant.NFT, Variant.LEGACY, True),
        (RULES, KUBELET, None, Variant.LEGACY, True),
        (NFT_EMPTY, RULES + KUBELET, None, Variant.LEGACY, False),
        (PROXY, KUBELET, Variant.NFT, Variant.LEGACY, False),
        (RULES + KUBELET, RULES + PROXY, Variant.LEGACY, Variant.NFT, True),
        (RULES, RULES, Variant.LEGACY, Variant.LEGACY, True),
    ],
)
def test_the_variant_is_what_kubelet_uses_then_what_holds_kube_chains_then_more_rules(
    nft: str, legacy: str, plain: Variant | None, chosen: Variant, *, both: bool
) -> None:
    choice = decide({Variant.NFT: nft, Variant.LEGACY: legacy}, plain)
    assert (choice.variant, choice.both) == (chosen, both)


@pytest.mark.parametrize(("text", "said"), [("100\n", True), ("10000\n", False), ("what?", False)])
def test_a_small_memory_of_clients_is_said(tmp_path: Path, text: str, *, said: bool) -> None:
    limit = tmp_path / "ip_list_tot"
    limit.write_text(text)
    assert (affinity_note(limit) is not None) is said
    assert affinity_note(tmp_path / "absent") is None
