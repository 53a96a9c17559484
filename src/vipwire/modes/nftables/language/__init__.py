"""The part of nft's rule language that vipwire writes, compiled to the bytes that nft sends.

Rules in the source have nft's syntax, and `nft list table` prints them so, up to its own preferences (`or 0x4000`
becomes `| 0x00004000`). Any other syntax raises RuleSyntaxError.

    scan ▶ fields ▶ grammar: a rule as parts ▶ compile: bytes, and comparison with the kernel     sets: declarations
"""

from vipwire.modes.nftables.language.compile import (
    compile_rule,
    describe_expressions,
    find_limit,
    is_same_rule,
    is_same_set,
)
from vipwire.modes.nftables.language.scan import RuleSyntaxError
from vipwire.modes.nftables.language.sets import SetSpec, compile_set, is_type

__all__ = [
    "RuleSyntaxError",
    "SetSpec",
    "compile_rule",
    "compile_set",
    "describe_expressions",
    "find_limit",
    "is_same_rule",
    "is_same_set",
    "is_type",
]
