"""What vipwire writes into the kernel itself is, byte for byte, what the tools would have written."""

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.values import endpoint, named, node_plan, slice_of
from tests.proxy.kernel.test_iptables_kernel import saved, services

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.encode import NetfilterHook
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.iptables.access.nft_access import NftAccess
from vipwire.modes.iptables.access.tool_access import LockWait
from vipwire.modes.iptables.driver import build_backends, build_rule_access, build_sample_rules, find_unreadable_rules
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.nfacct import ensure_counters
from vipwire.modes.iptables.rules.names import FILTER, FIREWALL, INVALID_COUNTER, LOCALHOST_COUNTER, NAT, Key, Rules
from vipwire.modes.iptables.rules.script import RestoreInput, TablePart
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.xtables.binary.expressions import reset_counter
from vipwire.modes.xtables.binary.shown import RuleReader
from vipwire.modes.xtables.tool import IptablesTool, Variant
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import NodePlan
from vipwire.reconcile.reconciler import Reconciler, Report

pytestmark = pytest.mark.kernel


@contextlib.contextmanager
def machine() -> Iterator[None]:
    """Enter a network namespace with kube-proxy's counters."""
    with own_network():
        ensure_counters((INVALID_COUNTER, LOCALHOST_COUNTER))
        yield


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with machine():
        yield


def dumped(family: Family) -> dict[tuple[str, str], tuple[NetfilterHook | None, list[bytes]]]:
    """Read what nf_tables holds: every chain with its hook, and its rules as they are."""
    found: dict[tuple[str, str], tuple[NetfilterHook | None, list[bytes]]] = {}
    with NetlinkSocket(NETLINK_NETFILTER) as sock:
        for table in ("filter", "nat", "mangle"):
            rules: dict[str, list[bytes]] = {}
            for payload in sock.dump(MessageType.GETRULE, encode.list_objects(family, table)):
                rule = decode.decode_rule(payload)
                rules.setdefault(rule.chain, []).append(reset_counter(rule.expressions))
            for payload in sock.dump(MessageType.GETCHAIN, encode.list_objects(family, table)):
                chain = decode.decode_chain(payload)
                if chain.table == table:
                    found[table, chain.name] = (chain.hook, rules.get(chain.name, []))
    return found


class Proxy:
    """A backend with a reconciler, for steps that both writers take."""

    def __init__(self, tool: IptablesTool, *, by_tools: bool) -> None:
        self.tool = tool
        self.backend = IptablesBackend(
            tool, RuleSettings(), writer=build_rule_access(tool, LockWait(), by_tools=by_tools)
        )
        self.reconciler: Reconciler[Key, Rules] = Reconciler(self.backend)
        self.node: NodePlan = node_plan(tool.family)
        self.reconciler.desire_node(self.backend.render_node(self.node))

    def steps(self) -> Iterator[tuple[str, object]]:
        """Write Services of every kind, change one, remove some; yield what the kernel has after each step."""
        made = services(self.tool.family, 40)
        for subject, slices in made:
            self.reconciler.desire(subject.name, plan_service(self.node, subject, slices))
        yield self._synced()
        subject, (piece, *_) = made[2]
        address = "10.9.9.9" if self.tool.family is Family.IPV4 else "fd00:9::9"
        other = slice_of("s3", endpoint(address), family=self.tool.family, ports=piece.ports)
        self.reconciler.desire(subject.name, plan_service(self.node, subject, [other]))
        yield self._synced()
        for subject, _ in made[:20]:
            self.reconciler.desire(subject.name, None)
        yield self._synced()
        self.backend.delete()
        yield self._state()
        self.backend.close()

    def _synced(self) -> tuple[str, object]:
        assert self.reconciler.sync().size
        assert not self.reconciler.isolated
        assert not self.backend.changed(), "nobody else has written"
        return self._state()

    def _state(self) -> tuple[str, object]:
        return saved(self.tool), dumped(self.tool.family)


def test_iptables_nft_would_have_written_the_same(family: Family) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    ours = list(Proxy(tool, by_tools=False).steps())
    with machine():
        theirs = list(Proxy(tool, by_tools=True).steps())
    for (text, kernel), (their_text, their_kernel) in zip(ours, theirs, strict=True):
        assert text == their_text
        assert kernel == their_kernel


def test_a_rule_of_every_kind_is_shown_as_it_was_written(family: Family) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    writer = build_rule_access(tool, LockWait())
    assert isinstance(writer, NftAccess)
    before = saved(tool)
    assert not find_unreadable_rules(tool, RuleSettings())
    assert saved(tool) == before
    parts = {
        table: TablePart({"KUBE-X": rules}) for table, rules in build_sample_rules(family, RuleSettings()).items()
    }
    writer.send_transaction(RestoreInput(parts))
    ours = dumped(family)
    with machine():
        tool.restore(RestoreInput(parts).text)
        assert dumped(family) == ours
    writer.close()


def test_what_this_iptables_does_not_show_is_left_to_it(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IptablesTool, "list_rules", lambda _self, _table, _chain: [])
    run(f"{'iptables' if family is Family.IPV4 else 'ip6tables'}-nft -t mangle -N KUBE-KUBELET-CANARY")
    built, notes = build_backends([family], RuleSettings(), prepare=True)
    (backend,) = built.values()
    assert any(note.what == "writing rules with the iptables tool" for note in notes)
    reconciler: Reconciler[Key, Rules] = Reconciler(backend)
    reconciler.desire_node(backend.render_node(node_plan(family)))
    reconciler.sync()
    backend.close()


def test_a_first_sync_is_one_transaction_for_all_tables(family: Family) -> None:
    assert _commits_of_a_first_sync(family, by_tools=True) > 1
    assert _commits_of_a_first_sync(family, by_tools=False) == 1


def _commits_of_a_first_sync(family: Family, *, by_tools: bool) -> int:
    with machine(), NetlinkSocket(NETLINK_NETFILTER) as sock:

        def generation() -> int:
            (answer,) = sock.request(MessageType.GETGEN, encode.request_generation())
            return decode.decode_generation(answer.payload).id

        before = generation()
        proxy = Proxy(IptablesTool(family, Variant.NFT, "a test"), by_tools=by_tools)
        proxy.reconciler.sync()
        proxy.backend.close()
        return generation() - before


def test_a_policy_and_rules_of_others_stay(family: Family) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    run(f"{tool.name} -P FORWARD DROP")
    run(f"{tool.name} -A FORWARD -p tcp --dport 9 -j ACCEPT")
    proxy = Proxy(tool, by_tools=False)
    proxy.reconciler.sync()
    text = saved(tool)
    assert ":FORWARD DROP" in text
    assert "-A FORWARD -p tcp -m tcp --dport 9 -j ACCEPT" in text
    proxy.backend.close()


def test_a_chain_that_somebody_else_made_meanwhile_is_taken_over(family: Family) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    proxy = Proxy(tool, by_tools=False)
    proxy.reconciler.sync()
    subject, slices = services(family, 1)[0]
    plan = plan_service(proxy.node, subject, slices)
    assert plan is not None
    chains = [key.chain for key in proxy.backend.render(plan).own if key.kind == "chain" and key.table == NAT]
    run(f"{tool.name} -t nat -N {chains[0]}")
    run(f"{tool.name} -t nat -A {chains[0]} -p tcp -j RETURN")
    proxy.reconciler.desire(named("s1"), plan)
    proxy.reconciler.sync()
    assert not proxy.reconciler.isolated
    assert f"-A {chains[0]} -p tcp -j RETURN" not in saved(tool)
    assert proxy.reconciler.verify(), "somebody has written"
    assert not proxy.reconciler.sync().size
    proxy.backend.close()


def test_a_jump_goes_as_often_as_it_is_there_and_one_of_others_stays(family: Family) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    proxy = Proxy(tool, by_tools=False)
    proxy.reconciler.sync()
    jumps = Counter(line for line in saved(tool).splitlines() if line.startswith("-A INPUT"))
    tool.restore("\n".join([f"*{FILTER}", *jumps, "COMMIT", ""]))
    assert proxy.reconciler.verify()
    proxy.reconciler.sync()
    assert Counter(line for line in saved(tool).splitlines() if line.startswith("-A INPUT")) == jumps
    proxy.backend.close()


def test_a_restart_takes_apart_and_writes_only_what_others_have_changed(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    read: list[str] = []
    words = RuleReader.__call__

    def noted(self: RuleReader, expressions: bytes) -> str:
        read.append(words(self, expressions))
        return read[-1]

    monkeypatch.setattr(RuleReader, "__call__", noted)

    def started() -> tuple[Proxy, Report[Key]]:
        proxy = Proxy(tool, by_tools=False)
        for subject, slices in services(family, 20):
            proxy.reconciler.desire(subject.name, plan_service(proxy.node, subject, slices))
        read.clear()
        return proxy, proxy.reconciler.sync()

    first, report = started()
    written = dumped(family)
    first.backend.close()
    assert report.added > 100

    equal, report = started()
    assert (report.added, report.changed, report.removed, report.size) == (0, 0, 0, 0)
    shared = sum(len(rules) for (_, chain), (hook, rules) in written.items() if hook or chain == FIREWALL)
    assert len(read) == shared, "no rule of ours was taken apart"
    run(f"{tool.name} -t nat -N OTHERS")
    read.clear()
    assert equal.reconciler.verify()
    assert not equal.reconciler.sync().size
    assert len(read) == shared, "nor after somebody else's commit"
    equal.backend.close()
    run(f"{tool.name} -t nat -X OTHERS")

    chain = next(chain for (table, chain), (_, rules) in written.items() if chain.startswith("KUBE-SEP-"))
    run(f"{tool.name} -t nat -A {chain} -j RETURN")
    other, report = started()
    assert (report.added, report.changed, report.removed) == (0, 1, 0)
    assert len(read) == shared + 3
    assert dumped(family) == written
    other.backend.close()


def test_what_is_read_is_what_the_tool_shows(family: Family) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    run(f"{tool.name} -t nat -N OTHERS")
    proxy = Proxy(tool, by_tools=False)
    for subject, slices in services(family, 20):
        proxy.reconciler.desire(subject.name, plan_service(proxy.node, subject, slices))
    proxy.reconciler.sync()
    ours, theirs = build_rule_access(tool, LockWait()), build_rule_access(tool, LockWait(), by_tools=True)
    shown = theirs.read(dict)
    found = ours.read(dict)
    for table, chains in shown.items():
        assert {chain: [*rules] for chain, rules in chains.items() if rules} == {
            chain: [*rules] for chain, rules in found[table].items() if rules
        }
        assert {chain for chain in chains if chain.startswith("KUBE-")} == {
            chain for chain in found[table] if chain.startswith("KUBE-")
        }
    for access in (ours, theirs, proxy.backend):
        access.close()


def test_a_rule_that_is_not_understood_is_read_by_the_tool(family: Family) -> None:
    tool = IptablesTool(family, Variant.NFT, "a test")
    proxy = Proxy(tool, by_tools=False)
    proxy.reconciler.sync()
    run(f"{tool.name} -t nat -I KUBE-MARK-MASQ -p tcp -m multiport --dports 80,81 -j RETURN")
    run(f"{tool.name} -t nat -A PREROUTING -p tcp -m multiport --dports 80,81 -j RETURN")
    access = build_rule_access(tool, LockWait())
    assert "-p tcp -m multiport --dports 80,81 -j RETURN" in access.read(dict)["nat"]["KUBE-MARK-MASQ"]
    assert proxy.reconciler.verify()
    assert proxy.reconciler.sync().repaired
    assert "-p tcp -m multiport --dports 80,81 -j RETURN" not in access.read(dict)["nat"]["KUBE-MARK-MASQ"]
    assert "-A PREROUTING -p tcp -m multiport --dports 80,81 -j RETURN" in saved(tool)
    access.close()
    proxy.backend.close()
