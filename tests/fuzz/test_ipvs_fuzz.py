"""Whatever bytes come from the kernel, the decoders of ipvs mode return or raise DecodeError."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire.linux.netlink import ipset, ipvs
from vipwire.linux.netlink.message import encode_attribute
from vipwire.model.net import Family
from vipwire.modes.ipvs.objects.chains import parse_save
from vipwire.modes.ipvs.objects.servers import parse_table
from vipwire.modes.xtables.save import ChainName

DECODERS = (
    ipvs.family_number,
    ipvs.decode_service,
    ipvs.decode_dest,
    ipvs.decode_timeouts,
    ipset.decode_list,
    ipset.decode_revision,
)
_attributes = st.recursive(
    st.binary(max_size=20),
    lambda inner: st.lists(st.tuples(st.integers(0, 30), inner), max_size=8).map(
        lambda pairs: b"".join(encode_attribute(kind, value) for kind, value in pairs)
    ),
    max_leaves=20,
)


@given(st.one_of(st.binary(max_size=200), _attributes.map(lambda body: bytes(4) + body)))
def test_decoders_return_or_say_what_is_wrong(data: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(DecodeError):
            decode(memoryview(data))


@given(st.text(alphabet="TCPUDFWM->[]:0A1x \n", max_size=200))
def test_any_text_for_a_table(text: str) -> None:
    for family in Family:
        with contextlib.suppress(DecodeError):
            parse_table("1\n2\n3\n" + text, family)


@given(st.text(alphabet="*:-AjKUBE nat\nPREROUTING", max_size=200))
def test_any_text_for_saved_rules(text: str) -> None:
    ours = frozenset({ChainName("nat", "KUBE"), ChainName("nat", "PREROUTING")})
    with contextlib.suppress(DecodeError):
        for chain, rules in parse_save(text, ours).items():
            assert chain.table == "nat"
            assert all(isinstance(rule, str) for rule in rules)
