"""The variant is chosen by what is in the tables; and a small memory of clients is said."""

from pathlib import Path

import pytest

from vipwire.modes.iptables.probe import Presence, decide_variant, find_affinity_limit
from vipwire.modes.xtables.tool import Variant

EMPTY = Presence()
RULES = Presence(rules=1)
KUBELET = Presence(kubelet=True, kubes=True)
PROXY = Presence(kubes=True)
KUBELET_AND_RULES = Presence(kubelet=True, kubes=True, rules=1)
PROXY_AND_RULES = Presence(kubes=True, rules=1)


@pytest.mark.parametrize(
    ("nft", "legacy", "plain", "chosen", "both"),
    [
        (EMPTY, EMPTY, Variant.LEGACY, Variant.LEGACY, False),
        (EMPTY, EMPTY, None, Variant.NFT, False),
        (RULES, EMPTY, Variant.LEGACY, Variant.NFT, False),
        (RULES, PROXY, Variant.NFT, Variant.LEGACY, True),
        (RULES, KUBELET, None, Variant.LEGACY, True),
        (EMPTY, KUBELET_AND_RULES, None, Variant.LEGACY, False),
        (PROXY, KUBELET, Variant.NFT, Variant.LEGACY, False),
        (KUBELET_AND_RULES, PROXY_AND_RULES, Variant.LEGACY, Variant.NFT, True),
        (RULES, RULES, Variant.LEGACY, Variant.LEGACY, True),
    ],
)
def test_the_variant_is_what_kubelet_uses_then_what_holds_kube_chains_then_more_rules(
    nft: Presence, legacy: Presence, plain: Variant | None, chosen: Variant, *, both: bool
) -> None:
    choice = decide_variant({Variant.NFT: nft, Variant.LEGACY: legacy}, plain)
    assert (choice.variant, choice.both) == (chosen, both)


@pytest.mark.parametrize(("text", "said"), [("100\n", True), ("10000\n", False), ("what?", False)])
def test_a_small_memory_of_clients_is_said(tmp_path: Path, text: str, *, said: bool) -> None:
    limit = tmp_path / "ip_list_tot"
    limit.write_text(text)
    assert (find_affinity_limit(limit) is not None) is said
    assert find_affinity_limit(tmp_path / "absent") is None
