"""A rule while it is being compiled, and how registers are laid out in it.

Registers are used as nft uses them: a value or key from the first word on; what is computed on the way (a hash's
input) after it, beyond at least one group of four words, and beyond the whole key as well if that is a concatenation.
"""

from collections.abc import Collection

from msgspec import Struct, field

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import Verdict
from vipwire.model.net import Family
from vipwire.modes.nftables.language.fields import Field, load_fields
from vipwire.modes.nftables.language.scan import Scanner

GROUP = 4
"""Words in a group: what one of the four large registers holds."""


class Draft(Struct):
    """The words still to be read, what has been compiled, and what is known by then."""

    words: Scanner
    family: Family
    intervals: Collection[str]
    addresses: Collection[str] = ()
    protocol: int = 0
    """What an earlier match has made sure `meta l4proto` is; 0 if nothing."""
    finished: bool = False
    """Nothing can follow: a verdict has been given."""
    parts: list[bytes] = field(default_factory=list)

    def add(self, *parts: bytes) -> None:
        """Append expressions."""
        self.parts += parts

    def verdict(self, code: wire.Code, chain: str = "") -> None:
        """Append a verdict; all but a jump end the rule."""
        self.add(kernel.verdict(Verdict(code, chain)))
        self.finished = code is not wire.Code.JUMP

    def need_protocol(self, protocol: int) -> None:
        """Add a match for the packet's protocol, unless it is known."""
        if protocol not in (0, self.protocol):
            self.add(self.load_protocol(), kernel.cmp(0, kernel.CMP_EQ, bytes((protocol,))))
            self.protocol = protocol

    @staticmethod
    def load_protocol() -> bytes:
        """Load `meta l4proto`."""
        return kernel.meta(0, kernel.META_L4PROTO)

    def load(self, fields: tuple[Field, ...], word: int, free: int, *, ordered: bool = False) -> None:
        """Load fields from `word` on, with `free` the first word for intermediate values; fail if they do not fit."""
        length = sum(field.words for field in fields)
        if word + length > kernel.REGISTER_WORDS:
            self.words.fail_before(f"a key of {4 * length} bytes does not fit into the 64 bytes of registers")
        if any(field.scratch and free + field.scratch > kernel.REGISTER_WORDS for field in fields):
            self.words.fail_before("what is hashed does not fit into the registers beside the key")
        self.add(load_fields(fields, word, free, ordered=ordered))

    def load_key(self, fields: tuple[Field, ...], name: str = "") -> None:
        """Load the key to look up in the set `name`, or a value if there is no set."""
        length = sum(field.words for field in fields)
        self.load(fields, 0, GROUP + length if len(fields) > 1 else GROUP, ordered=name in self.intervals)
