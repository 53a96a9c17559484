"""What a kernel lacks of nf_tables is found by trying, named in words, and told with what to do."""

import errno
from collections.abc import Callable

import pytest

from vipwire.errors import UnsupportedError
from vipwire.linux.netlink.message import Acknowledgement, encode_string, encode_u32be
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.nftables.wire import MessageType, SetFlag
from vipwire.model.net import Family
from vipwire.modes.nftables.probe import FEATURES, describe_advice, try_table, try_tables

Lacks = Callable[[Operation], bool]


class Kernel:
    """A kernel that takes whatever it does not lack, and has no table that could be deleted."""

    def __init__(self, lacks: Lacks, code: int = errno.ENOENT) -> None:
        self._lacks, self._code = lacks, code
        self.transactions = 0

    def send(self, operations: list[Operation]) -> tuple[int, list[Acknowledgement]]:
        self.transactions += 1
        refused = [Acknowledgement(self._code, 1 + at) for at, each in enumerate(operations, 1) if self._lacks(each)]
        return 1, [*refused, Acknowledgement(errno.ENOENT, 1 + len(operations))]


def expression(name: str) -> Lacks:
    return lambda operation: encode_string(1, name) in operation.payload and operation.kind is MessageType.NEWRULE


def nothing(_: Operation) -> bool:
    return False


def intervals(operation: Operation) -> bool:
    return encode_u32be(wire.SET_FLAGS, SetFlag.INTERVAL | SetFlag.CONCAT) in operation.payload


def counted(operation: Operation) -> bool:
    return operation.kind is MessageType.NEWSET and encode_string(1, "counter") in operation.payload


def nat_chain(operation: Operation) -> bool:
    return operation.kind is MessageType.NEWCHAIN and encode_string(wire.CHAIN_TYPE, "nat") in operation.payload


@pytest.mark.parametrize("family", Family)
def test_a_kernel_that_has_everything_is_asked_once(family: Family) -> None:
    kernel = Kernel(nothing)
    try_table(family, kernel.send)
    assert kernel.transactions == 1


@pytest.mark.parametrize(
    ("lacks", "code", "named", "module"),
    [
        (nat_chain, errno.ENOENT, "translation (nat chains, dnat)", "nft_chain_nat"),
        (expression("masq"), errno.ENOENT, "masquerade fully-random", "nft_masq"),
        (expression("reject"), errno.ENOENT, "reject, with a TCP reset", "nft_reject_ipv6"),
        (expression("fib"), errno.EOPNOTSUPP, "fib", "nft_fib_ipv4"),
        (expression("numgen"), errno.ENOENT, "numgen", "nft_numgen"),
        (expression("ct"), errno.ENOENT, "ct state, ct status", "nft_ct"),
        (expression("dynset"), errno.EOPNOTSUPP, "update and delete in maps from rules", "CONFIG_NF_TABLES"),
        (intervals, errno.EOPNOTSUPP, "intervals in concatenations", "CONFIG_NF_TABLES"),
        (intervals, errno.EINVAL, "intervals in concatenations", "CONFIG_NF_TABLES"),
        (counted, errno.EINVAL, "elements with counters, ct original", "nft_counter"),
    ],
)
def test_a_part_that_is_missing_is_named_with_what_to_do(lacks: Lacks, code: int, named: str, module: str) -> None:
    since = {each.name: each.since for each in FEATURES}[named]
    with pytest.raises(UnsupportedError) as raised:
        try_table(Family.IPV4, Kernel(lacks, code).send)
    said = str(raised.value)
    assert f"{named} (in Linux since {since})" in said
    assert module in said
    assert said.endswith("use a newer kernel, or another mode (--proxy-mode)")


def test_no_tables_of_a_family_names_what_the_kernel_was_built_without() -> None:
    with pytest.raises(UnsupportedError, match=r"tables of this family .*CONFIG_NF_TABLES_IPV6"):
        try_table(Family.IPV6, Kernel(lambda each: each.kind is MessageType.NEWTABLE, errno.EAFNOSUPPORT).send)


def test_what_may_pass_is_left_to_the_first_sync() -> None:
    try_table(Family.IPV4, Kernel(lambda _: True, errno.EBUSY).send)


def test_a_refusal_that_no_part_explains_is_told_as_it_is() -> None:
    def together(operation: Operation) -> bool:
        return b"cluster-ips-check" in operation.payload

    with pytest.raises(
        UnsupportedError, match=r"`add chain cluster-ips-check` \(EINVAL\) for IPv4: use another mode"
    ):
        try_table(Family.IPV4, Kernel(together, errno.EINVAL).send)


def test_without_hashing_the_mode_runs_and_the_services_that_ask_for_it_are_told() -> None:
    try_table(Family.IPV4, Kernel(expression("hash")).send)
    said = describe_advice("add rule service-source-hash-2 meta priority set jhash ip saddr mod 2")
    assert said == "this kernel has no jhash (source-hash, maglev): load nft_hash, or use a kernel that has it"
    assert describe_advice("add rule services return") == ""


def test_all_families_are_tried_by_one_transaction() -> None:
    kernel = Kernel(nothing)
    try_tables(tuple(Family), kernel.send)
    assert kernel.transactions == 1


def test_what_one_family_alone_lacks_is_told_for_it() -> None:
    def lacks(operation: Operation) -> bool:
        return nat_chain(operation) and operation.payload[0] == wire.NFPROTO[Family.IPV6]

    with pytest.raises(UnsupportedError, match=r"nf_tables, but refuses .* for IPv6"):
        try_tables(tuple(Family), Kernel(lacks).send)
