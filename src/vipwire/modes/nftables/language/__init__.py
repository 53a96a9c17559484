"""The part of nft's rule language that vipwire writes, compiled to what nft itself would send.

Rules stand in the source as an operator would type them, and `nft list table` prints them as they stand (up to nft's
own preferences: `or 0x4000` is printed as `| 0x00004000`). Anything outside of the subset is a RuleSyntaxError.

    scan ▶ fields ▶ grammar: a rule as parts ▶ compile: bytes, and does the kernel have them?     sets: declarations
"""

from vipwire.modes.nftables.language.compile import compile_rule, describe, limit, same_rule, same_set
from vipwire.modes.nftables.language.scan import RuleSyntaxError
from vipwire.modes.nftables.language.sets import SetSpec, compile_set, is_type

__all__ = [
    "RuleSyntaxError",
    "SetSpec",
    "compile_rule",
    "compile_set",
    "describe",
    "is_type",
    "limit",
    "same_rule",
    "same_set",
]
