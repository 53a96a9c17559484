"""The real tools, both variants and both families: what is written is what is read, and nobody else's is touched."""

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.values import cidr, endpoint, named, node_plan, port, service, slice_of

from vipwire.errors import CommitError
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol, format_address, parse_address
from vipwire.model.service import EndpointPort, EndpointSlice, Service, TrafficPolicy
from vipwire.modes.iptables.access.tool_access import Known, LockWait, RuleAccess, Written
from vipwire.modes.iptables.driver import build_backends, build_leftover_backends, build_rule_access
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.nfacct import read_counter
from vipwire.modes.iptables.probe import choose_variant, find_presence, probe_matches
from vipwire.modes.iptables.rules.names import Key, Rules
from vipwire.modes.iptables.rules.script import RestoreInput
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.xtables.save import Chains
from vipwire.modes.xtables.tool import PROGRAM, IptablesTool, Variant
from vipwire.modes.xtables.words import LOOPBACK
from vipwire.plan.frontends import plan_service
from vipwire.reconcile.counts import EndpointName, Measure, Refusal
from vipwire.reconcile.reconciler import Reconciler

pytestmark = pytest.mark.kernel

FULL = RuleSettings()


_OPEN: list[IptablesBackend] = []


@pytest.fixture(autouse=True)
def _namespace() -> Iterator[None]:
    with own_network():
        yield
        while _OPEN:
            _OPEN.pop().close()


def opened(backend: IptablesBackend) -> IptablesBackend:
    """Have a backend closed when the test ends."""
    _OPEN.append(backend)
    return backend


@pytest.fixture(params=list(Variant), ids=lambda variant: variant.value)
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.fixture
def tool(family: Family, variant: Variant) -> IptablesTool:
    return IptablesTool(family, variant, "a test")


def address(family: Family, number: int, net: int = 96) -> Address:
    return parse_address(
        f"10.{net}.{number >> 8}.{number & 255}" if family is Family.IPV4 else f"fd00:{net}::{number:x}"
    )


def services(family: Family, count: int) -> list[tuple[Service, list[EndpointSlice]]]:
    """Make Services of every kind that has rules of its own."""
    made = []
    for number in range(1, count + 1):
        ports = [
            port(80, "tcp", node_port=30000 + number),
            port(53, "udp", Protocol.UDP),
            port(9, "sctp", Protocol.SCTP),
        ]
        fields: dict[str, object] = {}
        if number % 4 == 1:
            vips = (address(family, number, 97), address(family, number, 98))
            ranges = (cidr("192.0.2.0/24" if family is Family.IPV4 else "2001:db8:1::/48"),)
            fields = {"load_balancer_ips": vips, "source_ranges": ranges, "external_policy": TrafficPolicy.LOCAL}
            fields["health_check_node_port"] = 31000 + number
        elif number % 4 == 2:
            fields = {"affinity_seconds": 10800, "external_ips": (address(family, number, 99),)}
        elif number % 4 == 3:
            fields = {"internal_policy": TrafficPolicy.LOCAL}
        name = f"s{number}"
        subject = Service(named(name), tuple(ports), (address(family, number),), **fields)  # type: ignore[arg-type]
        targets = [endpoint(_text(family, 3 * number + at), "node-1" if at else "node-2") for at in range(number % 4)]
        wired = [EndpointPort(each.name, each.protocol, each.port + 8000) for each in ports]
        made.append((subject, [slice_of(name, *targets, family=family, ports=wired)]))
    return made


def _text(family: Family, number: int) -> str:
    return f"10.1.{number >> 8}.{number & 255}" if family is Family.IPV4 else f"fd00:10::{number + 1:x}"


def started(
    tool: IptablesTool, count: int = 30, settings: RuleSettings = FULL, writer: RuleAccess | None = None
) -> tuple[Reconciler[Key, Rules], IptablesBackend]:
    """Start a proxy on what the kernel holds, with so many Services, and sync it."""
    able, _ = probe_matches(tool, settings)
    backend = opened(IptablesBackend(tool, able, writer=writer or build_rule_access(tool, LockWait())))
    reconciler: Reconciler[Key, Rules] = Reconciler(backend)
    node = node_plan(tool.family)
    reconciler.desire_node(backend.render_node(node))
    for subject, slices in services(tool.family, count):
        reconciler.desire(subject.name, plan_service(node, subject, slices))
    return reconciler, backend


def saved(tool: IptablesTool) -> str:
    """Show all tables, without what differs from one listing to the next."""
    lines = [line for table in ("mangle", "nat", "filter") for line in tool.save(table).splitlines()]
    return "\n".join(line for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("tree", [True, False], ids=["tree", "flat"])
def test_what_was_written_is_read_and_a_restart_writes_nothing(tool: IptablesTool, tree: bool) -> None:  # noqa: FBT001 - a case
    settings = RuleSettings(tree=tree)
    reconciler, backend = started(tool, settings=settings)
    report = reconciler.sync()
    assert not reconciler.isolated
    assert report.added > 300
    assert not backend.changed()
    before = saved(tool)
    again, other = started(tool, settings=settings)
    report = again.sync()
    assert (report.added, report.changed, report.removed, report.size) == (0, 0, 0, 0)
    assert saved(tool) == before
    assert (
        other.rules["nat"]
        == backend.rules["nat"]
        == before.count("\n-A KUBE-") - backend.rules["filter"] - _guard(tool)
    )


def _guard(tool: IptablesTool) -> int:
    """Count the one rule in KUBE-FIREWALL, which is in the listing and is kubelet's to count."""
    return tool.save("filter").count("\n-A KUBE-FIREWALL ")


def test_what_iptables_restore_is_given_it_shows_again_word_for_word(tool: IptablesTool) -> None:
    reconciler, backend = started(tool)
    reconciler.sync()
    assert backend.observe() == reconciler.desired()


def test_changes_step_by_step_end_where_one_step_ends(tool: IptablesTool) -> None:
    node = node_plan(tool.family)
    reconciler, backend = started(tool, 0)
    reconciler.sync()
    for subject, slices in services(tool.family, 24):
        reconciler.desire(subject.name, plan_service(node, subject, slices))
        reconciler.sync()
        assert not backend.changed(), "nobody else has written"
    for subject, _ in services(tool.family, 8):
        reconciler.desire(subject.name, None)
        reconciler.sync()
        assert not backend.changed()
    found = saved(tool)
    for each in build_leftover_backends([tool.family]):
        opened(each).delete()
    whole, _ = started(tool, 0)
    for subject, slices in services(tool.family, 24)[8:]:
        whole.desire(subject.name, plan_service(node, subject, slices))
    whole.sync()
    assert sorted(saved(tool).splitlines()) == sorted(found.splitlines())


class Company:
    """Somebody else writes right after us, before we look."""

    def __init__(self, tool: IptablesTool) -> None:
        self._tool, self._writer, self.harm = tool, build_rule_access(tool, LockWait()), ""
        self.batch = self._writer.batch

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        return self._writer.read(known)

    def write(self, run_: RestoreInput) -> Written:
        written = self._writer.write(run_)
        if self.harm:
            run(f"{self._tool.name} {self.harm}")
        return written

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("harm", ["-t nat -F KUBE-SERVICES", "-t nat -A KUBE-MARK-MASQ -j RETURN", "-t filter -F"])
def test_what_others_change_while_we_write_is_noticed(tool: IptablesTool, harm: str) -> None:
    company = Company(tool)
    reconciler, _ = started(tool, writer=company)
    reconciler.sync()
    before = sorted(saved(tool).splitlines())
    ((subject, slices),) = services(tool.family, 1)
    company.harm = harm
    reconciler.desire(subject.name, None)
    reconciler.sync()
    company.harm = ""
    assert reconciler.verify()
    reconciler.desire(subject.name, plan_service(node_plan(tool.family), subject, slices))
    reconciler.sync()
    assert sorted(saved(tool).splitlines()) == before
    reconciler.verify()  # what was in disorder may be looked at once more
    assert not reconciler.sync().size
    assert not reconciler.verify()


def test_one_familys_commits_are_not_foreign_to_the_other(variant: Variant) -> None:
    run(f"iptables-{variant.value} -t mangle -N KUBE-KUBELET-CANARY")
    built, _ = build_backends(list(Family), FULL, prepare=True)
    syncs = []
    for family, backend in built.items():
        opened(backend)
        reconciler: Reconciler[Key, Rules] = Reconciler(backend)
        reconciler.desire_node(backend.render_node(node_plan(family)))
        reconciler.sync()
        syncs.append(reconciler)
    assert not any(backend.changed() for backend in built.values())
    for family, reconciler in zip(built, syncs, strict=True):
        subject, slices = services(family, 1)[0]
        reconciler.desire(subject.name, plan_service(node_plan(family), subject, slices))
        reconciler.sync()
        assert not any(backend.changed() for backend in built.values())
    run(f"iptables-{variant.value} -t nat -A OUTPUT -p tcp -j RETURN")
    assert built[Family.IPV4].changed()


def test_a_service_that_the_kernel_refuses_is_named_and_left_alone(
    tool: IptablesTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler, _ = started(tool, 5)
    reconciler.sync()
    unknown = "-m nfacct --nfacct-name nothing_of_the_kind"
    monkeypatch.setattr("vipwire.modes.iptables.rules.render.remember", lambda _family, _chain: unknown)
    node = node_plan(tool.family)
    for subject, slices in services(tool.family, 8)[5:]:
        reconciler.desire(subject.name, plan_service(node, subject, slices))
    reconciler.sync()
    ((name, error),) = reconciler.isolated.items()
    assert name == named("s6")
    assert "line " in str(error)
    # The legacy engine judges a table as a whole: what it refuses is found by leaving out halves.
    assert tool.variant is Variant.LEGACY or "(Service port default/s6:" in str(error)
    assert unknown in error.transaction
    assert "s7:udp cluster IP" in saved(tool)


def test_the_holder_of_the_lock_is_named() -> None:
    tool = IptablesTool(Family.IPV4, Variant.LEGACY, "a test")
    holder = (
        "import fcntl, os, sys; f = open(os.environ.get('XTABLES_LOCKFILE', '/run/xtables.lock'), 'w');"
        "fcntl.flock(f, fcntl.LOCK_EX);"
        "print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with pytest.raises(CommitError, match=rf"held by process {process.pid} \(python"):
            tool.restore("*filter\n:KUBE-PROXY-PROBE - [0:0]\nCOMMIT\n", wait=1)
        able, (note,) = probe_matches(tool, FULL)
        assert able == FULL, "what cannot be tried is taken to be there"
        assert "xtables lock" in note.reason
        process.communicate()


def test_the_variant_is_the_one_that_kubelet_uses(family: Family, variant: Variant) -> None:
    run(f"{PROGRAM[family]}-{variant.value} -t mangle -N KUBE-KUBELET-CANARY")
    choice = choose_variant([family])
    assert (choice.variant, choice.both) == (variant, False)


def test_rules_are_counted_only_where_their_number_chooses_the_variant(family: Family) -> None:
    program = PROGRAM[family]
    for _ in range(3):
        run(f"{program}-nft -t nat -A OUTPUT -j ACCEPT")
    for _ in range(2):
        run(f"{program}-legacy -t nat -A OUTPUT -j ACCEPT")
    assert choose_variant([family]).reason == "3 rules are there"
    run(f"{program}-legacy -t nat -N KUBE-SERVICES")
    choice = choose_variant([family])
    assert (choice.variant, choice.both) == (Variant.LEGACY, True)
    assert find_presence(Variant.NFT, [family]).rules == 1, "any"
    assert find_presence(Variant.NFT, [family], exact=True).rules == 3


def test_the_counters_of_rules_are_read_without_the_tools(tool: IptablesTool) -> None:
    reconciler, backend = started(tool, 8)
    reconciler.sync()
    plans = [plan_service(node_plan(tool.family), subject, slices) for subject, slices in services(tool.family, 8)]
    before = backend.read_counts(plans)
    assert not any(number for numbers in before.values() for number in numbers.values())
    swallow(tool.family)
    for number in range(1, 9):
        send(tool.family, address(tool.family, number), 53, times=5)
        send(tool.family, address(tool.family, number), 99, times=1)
    counts = backend.read_counts(plans)
    connections = counts[Measure.CONNECTIONS]
    ports = {name: number for name, number in connections.items() if isinstance(name, ServicePortName)}
    assert ports
    for name, of_port in ports.items():
        number = int(name.service.name.removeprefix("s"))
        answers = number % 4 and name.port == "udp"
        assert of_port == (5 if answers else 0), name
        ends = [each for end, each in connections.items() if isinstance(end, EndpointName) and end.port_name == name]
        assert of_port == sum(ends)
    refused = {
        (refusal, str(name or "")): packets for (refusal, name), packets in counts.refusals().items() if packets
    }
    assert refused == {
        (Refusal.UNDEFINED_PORT, ""): 8,
        (Refusal.NO_ENDPOINTS, "default/s4:udp"): 5,
        (Refusal.NO_ENDPOINTS, "default/s8:udp"): 5,
    }
    assert backend.read_counts(plans, endpoints=False)[Measure.CONNECTIONS] == ports
    few = backend.read_counts(plans[:2])[Measure.CONNECTIONS]
    assert few.items() <= connections.items(), "of a few only these chains are asked for"


def swallow(family: Family) -> None:
    """Have a default route, into a device that swallows what it is given."""
    six = family is Family.IPV6
    run("ip link add sink type veth peer name drain")
    run("ip link set drain up")
    run("ip link set sink up")
    run(f"ip address add {'fd00:5::5/64' if six else '192.0.2.5/24'} dev sink{' nodad' if six else ''}")
    run(f"ip {'-6' if six else '-4'} route add default dev sink")


def send(family: Family, destination: Address, port: int, times: int) -> None:
    """Send datagrams, each from a port of its own. What the filter table refuses is a PermissionError."""
    kind = socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET
    for _ in range(times):
        with socket.socket(kind, socket.SOCK_DGRAM) as opened, contextlib.suppress(PermissionError):
            opened.sendto(b"x", (format_address(destination), port))


def test_rules_of_both_kinds_are_reported() -> None:
    run("iptables-nft -A INPUT -p tcp --dport 1 -j DROP")
    run("iptables-legacy -A INPUT -p tcp --dport 1 -j DROP")
    built, notes = build_backends([Family.IPV4], FULL, prepare=True)
    opened(built[Family.IPV4])
    assert any("both iptables-nft and iptables-legacy" in note.what for note in notes)


def test_the_probe_leaves_nothing_and_the_counters_count(tool: IptablesTool) -> None:
    before = saved(tool)
    able, notes = probe_matches(tool, FULL)
    assert saved(tool) == before
    assert not notes, "this kernel has everything"
    assert able == FULL
    assert read_counter("ct_state_invalid_dropped_pkts") == 0.0
    assert read_counter("nothing_of_the_kind") is None


def test_a_feature_that_is_missing_is_done_without(tool: IptablesTool, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = IptablesTool.restore

    def without_recent(self: IptablesTool, text: str, wait: int = 5) -> None:
        if "-m recent" in text:
            raise CommitError("no such match")
        restore(self, text, wait)

    monkeypatch.setattr(IptablesTool, "restore", without_recent)
    able, (note,) = probe_matches(tool, FULL)
    assert not able.affinity
    assert note.what == "recent"
    reconciler, _ = started(tool)
    reconciler.sync()
    assert not reconciler.isolated


def test_kube_proxys_text_is_taken_over_with_the_differences_only(tool: IptablesTool) -> None:
    """The text is as kube-proxy writes it: its order of options, its flat chains, its marks."""
    text = (Path(__file__).parent / "kube_proxy_restore.txt").read_text(encoding="utf-8")
    chain = {Family.IPV4: "KUBE-SEP-5LTSMWKBQLY34WMB", Family.IPV6: "KUBE-SEP-5NDRB56JJTWUNCKU"}[tool.family]
    text = text.replace("@SEP@", chain).replace("@LOOP@", f"! -d {LOOPBACK[tool.family]}")
    if tool.family is Family.IPV6:
        text = text.replace("172.30.0.41", "fd00:172::41").replace("10.0.0.0/8", "fd00:10::/64")
        text = text.replace("10.180.0.1:80", "[fd00:10::1]:80").replace("10.180.0.1", "fd00:10::1")
    tool.restore(text)
    able, _ = probe_matches(tool, RuleSettings(tree=False, counters=False, localhost_node_ports=False))
    backend = opened(IptablesBackend(tool, able, writer=build_rule_access(tool, LockWait())))
    reconciler: Reconciler[Key, Rules] = Reconciler(backend)
    node = node_plan(tool.family)
    reconciler.desire_node(backend.render_node(node))
    subject = service("web", "172.30.0.41" if tool.family is Family.IPV4 else "fd00:172::41")
    target = endpoint("10.180.0.1" if tool.family is Family.IPV4 else "fd00:10::1")
    piece = slice_of("web", target, family=tool.family, ports=(EndpointPort("", Protocol.TCP, 80),))
    reconciler.desire(subject.name, plan_service(node, subject, [piece]))
    before = saved(tool)
    report = reconciler.sync()
    gone = set(before.splitlines()) - set(saved(tool).splitlines())
    assert gone == {line for line in before.splitlines() if "KUBE-SVC-OLDOLDOLDOLDOLD0" in line}
    added = set(saved(tool).splitlines()) - set(before.splitlines())
    (jump,) = (line for line in added if line.startswith("-A OUTPUT "))
    assert jump.endswith("-j KUBE-EXTERNAL-SERVICES"), "the one jump that kube-proxy does not have"
    others = "\n".join(sorted(added - {jump}))
    assert re.sub(r"-m comment .*?\" |[0-9a-f:.]+/\d+|icmp6?-", "", others).splitlines() == [
        "-A KUBE-CLUSTER-IPS -d  -j KUBE-NO-SUCH-PORT",
        "-A KUBE-NO-SUCH-PORT -j REJECT --reject-with port-unreachable",
        "-A KUBE-NO-SUCH-PORT -p tcp -j REJECT --reject-with tcp-reset",
        "-A KUBE-SERVICES -j KUBE-CLUSTER-IPS",
        ":KUBE-CLUSTER-IPS - [0:0]",
        ":KUBE-NO-SUCH-PORT - [0:0]",
        ":KUBE-RANGES - [0:0]",
    ]
    assert (report.added, report.changed, report.removed) == (6, 1, 1)
