"""The part of nft's rule language that vipwire writes, compiled to what nft itself would send.

Rules stand in the source as an operator would type them, and `nft list table` prints them as they stand (up to nft's
own preferences: `or 0x4000` is printed as `| 0x00004000`). Anything outside of the subset is a RuleSyntaxError.

    scan ▶ fields, values ▶ grammar: a rule as parts ▶ emit, explain     sets     compare: does the kernel have it?
"""

from vipwire.modes.nftables.language.compare import describe, limit, same_rule, same_set
from vipwire.modes.nftables.language.emit import CompiledRule, compile_rule
from vipwire.modes.nftables.language.scan import RuleSyntaxError
from vipwire.modes.nftables.language.sets import SetSpec, compile_set, interval_elements, is_type, range_element

__all__ = [
    "CompiledRule",
    "RuleSyntaxError",
    "SetSpec",
    "compile_rule",
    "compile_set",
    "describe",
    "interval_elements",
    "is_type",
    "limit",
    "range_element",
    "same_rule",
    "same_set",
]
