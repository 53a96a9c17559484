"""Reads rules from nf_tables and writes runs as its transactions, without running a program.

The kernel refuses a transaction if another program has committed since the generation that it names; then vipwire
reads again and retries. If vipwire cannot encode a rule, or the kernel refuses the run, iptables-restore writes it,
and its error names the rule. If it succeeds, and the kernel did not lack memory or a right, it writes from then on.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.nftables import decode, encode, xtables_rules
from vipwire.linux.netlink.nftables.encode import NetfilterHook, Operation
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkError, NetlinkSocket
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.iptables.access.nft_dump import TableReader
from vipwire.modes.iptables.access.tool_access import Known, RuleAccess, Written
from vipwire.modes.iptables.rules.names import FILTER, NAT, TABLES
from vipwire.modes.iptables.rules.script import RestoreInput, TablePart
from vipwire.modes.xtables.binary.expressions import Encoder, reset_counter
from vipwire.modes.xtables.binary.shown import RuleReader
from vipwire.modes.xtables.binary.words import UnknownRuleError
from vipwire.modes.xtables.save import Chains

BASES: Final[Mapping[tuple[str, str], NetfilterHook]] = {
    (FILTER, "INPUT"): NetfilterHook("filter", encode.HOOKS["input"], 0),
    (FILTER, "FORWARD"): NetfilterHook("filter", encode.HOOKS["forward"], 0),
    (FILTER, "OUTPUT"): NetfilterHook("filter", encode.HOOKS["output"], 0),
    (NAT, "PREROUTING"): NetfilterHook("nat", encode.HOOKS["prerouting"], -100),
    (NAT, "OUTPUT"): NetfilterHook("nat", encode.HOOKS["output"], -100),
    (NAT, "POSTROUTING"): NetfilterHook("nat", encode.HOOKS["postrouting"], 100),
}
"""The built-in chains that jump to vipwire's; iptables-nft creates each at its first use."""

Handles = Mapping[tuple[str, str, str], list[int]]
"""The rules to delete: by table, chain and words."""


def build_operations(
    encoder: Encoder, family: Family, run: RestoreInput, missing: frozenset[tuple[str, str]], handles: Handles
) -> list[Operation]:
    """Write one run as one transaction, like iptables-nft. `missing` are the chains of `BASES` to create.

        tables; chains that may be missing; chains emptied; rules; jumps in chains of others; chains deleted

    A new chain must not exist yet. All chains exist before a rule jumps to one, and all deleted chains are emptied
    first. Raise UnknownRuleError for a rule that vipwire cannot encode.
    """
    found: list[Operation] = []
    for table in TABLES:
        if part := run.parts.get(table):
            found += _build_table_operations(encoder, family, table, part, missing, handles)
    return found


def _build_table_operations(
    encoder: Encoder,
    family: Family,
    table: str,
    part: TablePart,
    missing: frozenset[tuple[str, str]],
    handles: Handles,
) -> Iterator[Operation]:
    chains = sorted((*part.chains, *part.emptied, *part.gone), reverse=True)
    yield xtables_rules.open_table(family, table)
    yield from xtables_rules.recreate_chains(family, table, (chain for chain in chains if chain in part.fresh))
    yield from (encode.new_chain(family, table, chain) for chain in chains if chain not in part.fresh)
    for chain in dict.fromkeys(jump.chain for jump in part.jumps):
        if (table, chain) in missing:
            yield encode.new_chain(family, table, chain, BASES[table, chain])
    yield from (encode.flush_chain(family, table, chain) for chain in chains if chain not in part.fresh)
    for chain in chains:
        if rules := part.chains.get(chain):
            yield from xtables_rules.new_xtables_rules(family, table, chain, map(encoder, rules))
    for verb, chain, rule in part.jumps:
        if verb == "-D":
            yield xtables_rules.delete_rule(family, table, chain, handles[table, chain, rule].pop())
        else:
            yield from xtables_rules.new_xtables_rules(family, table, chain, [encoder(rule)], first=verb == "-I")
    yield from (encode.delete_chain(family, table, chain) for chain in part.gone)


_SHORTAGES: Final = (errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOBUFS, errno.ENOMEM, errno.EPERM)
_PASSING: Final = frozenset((errno.EEXIST, errno.ENOENT, errno.ERESTART, *_SHORTAGES))
"""The errno values of a transaction that met other rules than expected, or lacked memory or a right for a while."""
TRIES: Final = 20
"""Limit of retries after commits of other programs."""


class NftAccess:
    """The rules of one family, in the network namespace of its creation; `tool` reads and writes unknown rules."""

    def __init__(self, family: Family, tool: RuleAccess, batch: int) -> None:
        self._family, self._tool, self.batch = family, tool, batch
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._encoder = Encoder(family)
        self._tables = TableReader(self._socket, family, self._encoder, RuleReader(family))
        self.direct = True

    def close(self) -> None:
        self._socket.close()
        self._tool.close()

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        """Read every table; use the tool if vipwire cannot decode a rule."""
        if self.direct:
            for _ in range(TRIES):
                try:
                    before = self._read_generation()
                    found = self._tables.read(known)
                    if self._read_generation() == before:
                        return found
                except DumpInterruptedError:
                    continue
                except (UnknownRuleError, DecodeError, OSError) as error:
                    log.detail(2, "iptables", reading="by the tool", reason=str(error))
                    break
        return self._tool.read(known)

    def write(self, run: RestoreInput) -> Written:
        """Write one run; use the tool if vipwire cannot encode it."""
        if not self.direct:
            return self._tool.write(run)
        try:
            return self.send_transaction(run)
        except UnknownRuleError as error:
            log.detail(
                2, "iptables", tool="a run of rules that are not known as the kernel has them", reason=str(error)
            )
            return self._tool.write(run)
        except OSError as error:
            written = self._tool.write(run)
            if error.errno in _PASSING:
                return written
            self.direct = False
            log.warning(
                "iptables", what="the kernel has refused a change that iptables-nft can make", reason=str(error)
            )
            return written

    def send_transaction(self, run: RestoreInput) -> Written:
        """Write one run without a program. Raise UnknownRuleError, or OSError if the kernel refuses."""
        error: OSError | None = None
        for _ in range(TRIES):
            generation = self._read_generation()
            batch = build_operations(
                self._encoder, self._family, run, self._find_missing_chains(run), self._read_handles(run)
            )
            first = self._socket.reserve_sequence_numbers(len(batch) + 2)
            self._socket.drain()
            size = self._socket.send(*encode.encode_transaction(batch, first, generation))
            refused = next((each for each in self._socket.read_acknowledgements() if each.errno), None)
            if refused is None:
                return Written(size, 1)
            error = OSError(refused.errno, refused.text or errno.errorcode.get(refused.errno, "refused"))
            if refused.errno != errno.ERESTART:
                break
        raise error or OSError(errno.ERESTART, "other programs change the tables too often")

    def _read_generation(self) -> int:
        (answer,) = self._socket.request(MessageType.GETGEN, encode.request_generation())
        return decode.decode_generation(answer.payload).id

    def _find_missing_chains(self, run: RestoreInput) -> frozenset[tuple[str, str]]:
        """Return the built-in chains that do not exist yet."""
        used = {(table, jump.chain) for table, part in run.parts.items() for jump in part.jumps if jump.verb != "-D"}
        return frozenset(where for where in used & BASES.keys() if not self._has_chain(*where))

    def _has_chain(self, table: str, chain: str) -> bool:
        try:
            self._socket.request(MessageType.GETCHAIN, xtables_rules.request_chain(self._family, table, chain))
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def _read_handles(self, run: RestoreInput) -> Handles:
        """Return the handles of the rules to delete: as many of each as the run deletes, the first rules last."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for table, part in run.parts.items():
            gone = [jump for jump in part.jumps if jump.verb == "-D"]
            for chain in {jump.chain for jump in gone}:
                request = xtables_rules.list_rules(self._family, table, chain)
                there = [decode.decode_rule(payload) for payload in self._socket.dump(MessageType.GETRULE, request)]
                for rule in {jump.rule for jump in gone if jump.chain == chain}:
                    wanted = self._encoder(rule).expressions
                    same = [each.handle for each in there if reset_counter(each.expressions) == wanted]
                    if len(same) < sum(jump == ("-D", chain, rule) for jump in gone):
                        raise UnknownRuleError(f"the rule is not there as it is written here: {chain} {rule}")
                    found[table, chain, rule] = same[::-1]
        return found
