"""The demo's scenes in order, and its verdict. The scenes of `vipwire up` are in `standalone`.

Each scene shows something, explains it, and checks it.
"""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vipwire.model.net import Protocol
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.outcome import Outcome
from vipwire_lab.cluster.state import find_program, spell_command
from vipwire_lab.demo import objects, standalone
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.objects import CLIENT, CLIENT_ADDRESS, CLIENT_IPV6, MANY, NODE_ADDRESS, OTHER_POD, POD
from vipwire_lab.demo.stage import FAMILIES, NODE, Stage, create_own_cgroup, format_syncs
from vipwire_lab.namespaces.errors import LabError

_MAP = """\
client 203.0.113.2 ─ network ─┬─ node-1 192.168.0.1 ─ pod-1a 10.244.1.11, pod-1b .12, pod-1c .13
 (outside)                    └─ node-2 192.168.0.2 ─ pod-2a 10.244.2.11, pod-2b .12"""
_NEXT = """\
vipwire lab up --proxy-mode nftables      # starts this lab, and keeps it
vipwire lab probe client 10.96.0.10:80 -n 100
vipwire lab exec node-1 -- vipwire status
vipwire lab exec node-1 -- nft list table ip vipwire
vipwire lab view                          # shows the lab in a browser
vipwire lab down                          # stops the lab
vipwire lab compare                       # compares all modes

How a packet goes through these rules: docs/packet-path.md"""


def run_demo() -> int:
    """Play all scenes; return 0 if all checks held, else 1. Raise LabError if the demo cannot continue."""
    narrator = Narrator()
    narrator.print_title("vipwire: Kubernetes Services on one machine, with real packets")
    stage = Stage()
    with _terminated_as_interrupted():
        with narrator.show_waiting("building two nodes, five Pods and a client out of network namespaces"):
            stage.build_stage()
        with stage:
            for scene in SCENES:
                scene(stage, narrator)
    narrator.print_chapter("The end")
    narrator.print_check("the lab's namespaces, processes and files are gone", holds=stage.gone)
    return print_verdict(narrator)


def print_verdict(narrator: Narrator) -> int:
    if narrator.failures:
        narrator.print_text(f"{len(narrator.failures)} of {narrator.checks} checks FAILED:")
        for failure in narrator.failures:
            narrator.print_text(f"  {failure}")
        return 1
    narrator.print_text(f"All {narrator.checks} checks passed. Try next:")
    narrator.print_quote(spell_command(_NEXT))
    return 0


def show_opening(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("A cluster, and vipwire on node-1")
    narrator.print_quote(_MAP)
    narrator.print_text(
        "All hosts are network namespaces; the demo does not touch your own network. The Pods answer with their "
        "name and the address they see. Services are YAML files in a folder that vipwire watches, in place of "
        "an API server."
    )
    stage.write_manifests("nodes", objects.nodes())
    for name in ("web", "shop", "empty", "sticky"):
        stage.write_manifests(name, getattr(objects, name)())
    narrator.print_quote(f"node-1$ vipwire {' '.join(stage.proxy_command)}")
    with narrator.show_waiting("starting vipwire"):
        syncs = stage.start_proxy()
    narrator.print_quote(format_syncs(syncs))
    narrator.print_check(
        "one transaction for each family has put 4 Services into an empty kernel",
        holds=all(sync.observed == 0 and sync.added > 0 and not sync.changed + sync.removed for sync in syncs),
    )


def show_kernel_rules(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("The kernel's objects: constant rules, and Services as elements of maps")
    nft = find_program("nft")
    if nft is None:
        narrator.print_text("This machine has no nft command to show them. (Debian: apt install nftables)")
        return

    def listed(*what: str) -> str:
        return stage.lab.run(NODE, [nft, "list", *what]).stdout

    service_ips = listed("map", "ip", "vipwire", "service-ips")
    parts = (
        service_ips,
        listed("chain", "ip", "vipwire", "service-pick-5"),
        listed("chain", "ip", "vipwire", "service-dnat"),
        listed("map", "ip", "vipwire", "service-endpoints"),
    )
    narrator.print_quote("node-1$ nft list table ip vipwire        (an excerpt)")
    for text in parts:
        narrator.print_quote("\n".join(_excerpt_of(text)))
    narrator.print_check(
        "the element of web's ClusterIP names the Service", holds='comment "default/web:http"' in service_ips
    )
    narrator.print_text(
        "1:5 is the class of web: the map `spread` sends it to service-pick-5, which draws one of five slots, 0:1 to "
        "0:5; in that slot service-endpoints has the Pod. More Services are more elements; the rules stay these."
    )


def _excerpt_of(listing: str) -> Iterator[str]:
    """Extract the body of the table from a listing, with only web's elements."""
    for line in listing.expandtabs(2).splitlines()[1:-1]:
        element = line.strip().removeprefix("elements = { ")
        if not element[:1].isdigit():
            yield line[2:]
        elif element.startswith(f"{objects.WEB} . tcp"):
            yield f"    {element}"


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: leave the stage, which cleans up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_AT_ONCE = 1.0
"""Seconds. The kernel repeats an unanswered SYN after one second: an earlier error is an immediate refusal."""


def show_from_pod(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter(f"A Pod asks the ClusterIP {objects.WEB} of Service web, {MANY} times")
    results = stage.lab.probe(POD.name, objects.WEB, 80, count=MANY)
    narrator.print_results(results)
    narrator.check_answers(results, objects.PODS, "all 5 Pods, chosen at random")
    others = [result for result in results if result.pod != POD.name]
    narrator.print_check(
        f"the others saw {POD.name}'s own address: no source NAT between Pods",
        holds=all(result.saw == POD.addresses[0] for result in others),
    )
    itself = [result for result in results if result.pod == POD.name]
    narrator.print_check(
        f"{POD.name} was also sent to itself, and saw its node: else its answer would not pass the NAT",
        holds=bool(itself) and all(result.saw != POD.addresses[0] for result in itself),
    )
    udp = stage.lab.probe(POD.name, objects.WEB, 53, Protocol.UDP, count=20)
    narrator.print_check("UDP works the same way", holds=all(result.answer for result in udp))


def show_from_outside(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("A client outside asks a node port, then a load balancer's address")
    port = objects.WEB_NODE_PORT
    narrator.print_text(f"{CLIENT} to {NODE_ADDRESS}:{port}, which is web's node port:")
    results = stage.lab.probe(CLIENT, NODE_ADDRESS, port, count=MANY)
    narrator.print_results(results)
    narrator.check_answers(results, objects.PODS, "all 5 Pods, on both nodes")
    narrator.print_check(
        "they saw node-1, so that their answers come back through it",
        holds={result.saw for result in results} == {NODE_ADDRESS},
    )
    narrator.print_text(f"{CLIENT} to {objects.SHOP_IP}:80, Service shop with externalTrafficPolicy: Local:")
    results = stage.lab.probe(CLIENT, objects.SHOP_IP, 80, count=MANY)
    narrator.print_results(results)
    narrator.check_answers(results, objects.LOCAL_PODS, "the Pods on this node only")
    narrator.print_check(
        "which therefore see the client's address",
        holds={r.saw for r in results} == {CLIENT_ADDRESS},
    )


def show_ipv6(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("The same over IPv6")
    results = stage.lab.probe(OTHER_POD.name, objects.WEB_IPV6, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"[{objects.WEB_IPV6}]:80 from {OTHER_POD.name}: all 5 Pods")
    results = stage.lab.probe(CLIENT, objects.SHOP_IPV6, 80, count=MANY)
    narrator.check_answers(results, objects.LOCAL_PODS, f"[{objects.SHOP_IPV6}]:80 from {CLIENT}: the Pods on node-1")
    narrator.print_check(f"and they saw {CLIENT_IPV6}", holds={result.saw for result in results} == {CLIENT_IPV6})


def show_service_without_endpoints(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("A Service without endpoints refuses, at once")
    for host in (POD.name, CLIENT):
        (result,) = stage.lab.probe(host, objects.EMPTY, 80, timeout=3.0)
        narrator.print_check(
            f"{host} to {objects.EMPTY}:80: {result.outcome.value} after {result.duration * 1000:.1f} ms",
            holds=result.outcome is Outcome.REFUSED and result.duration < _AT_ONCE,
        )


def show_session_affinity(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter(f"Session affinity: each client of {objects.STICKY} keeps its first endpoint")
    clients = (
        (CLIENT, CLIENT_ADDRESS),
        (CLIENT, "203.0.113.130"),
        *((pod.name, pod.addresses[0]) for pod in objects.PODS[:3]),
    )
    for host, source in clients:
        results = stage.lab.probe(host, objects.STICKY, 80, source=source, count=20, parallel=1)
        who = {result.pod for result in results}
        names = ", ".join(sorted(who))
        narrator.print_check(f"20 connections from {source}: all to {names}", holds=len(who) == 1 and "" not in who)


def show_leaving_endpoint(stage: Stage, narrator: Narrator) -> None:
    """Remove an endpoint under an open connection, and bring it back."""
    with stage.lab.connect(CLIENT, NODE_ADDRESS, objects.WEB_NODE_PORT) as connection:
        going = connection.answer.pod
        narrator.print_chapter(f"{going} leaves while a connection to it is open, and comes back")
        rest = [pod for pod in objects.PODS if pod.name != going]
        narrator.print_text(f"{going} is taken out of web's EndpointSlices:")
        narrator.print_quote(format_syncs(stage.change_and_wait("web", objects.web(rest))))
        results = stage.lab.probe(POD.name, objects.WEB, 80, count=MANY)
        narrator.check_answers(results, rest, f"the other 4, never {going}")
        narrator.print_check("the open connection stays open", holds=_is_alive(connection))
    narrator.print_text("It is put back:")
    narrator.print_quote(format_syncs(stage.change_and_wait("web", objects.web())))
    results = stage.lab.probe(POD.name, objects.WEB, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, "all 5 again")


def show_new_service(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("A Service appears")
    before = stage.lab.probe(POD.name, objects.LATE, 80)
    narrator.print_check(f"no Service has {objects.LATE}: {before[0].outcome.value}", holds=not before[0].answer)
    narrator.print_text("late.yaml is put into the folder:")
    stage.write_manifests("late", objects.late())
    seconds, result = stage.wait_until_answered(POD.name, objects.LATE, 80)
    narrator.print_check(f"{seconds * 1000:.0f} ms later {result.pod} answers", holds=bool(result.answer))


def show_proxy_restart(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("vipwire is restarted under traffic")
    (before,) = stage.lab.probe(CLIENT, objects.STICKY, 80)
    with (
        stage.lab.connect(CLIENT, NODE_ADDRESS, objects.WEB_NODE_PORT) as connection,
        stage.lab.connect_continuously(POD.name, objects.WEB, 80) as stream,
    ):
        stream.wait_for(20)
        status = stage.proxy.stop_proxy() if stage.proxy else 1
        narrator.print_check("it ends on SIGTERM with status 0 and leaves its rules", holds=status == 0)
        stream.wait_for(20)
        with narrator.show_waiting("starting vipwire"):
            syncs = stage.start_proxy()
        stream.wait_for(20)
        alive = _is_alive(connection)
    narrator.print_quote(format_syncs(syncs))
    unchanged = all(sync.written == 0 and sync.size == 0 and bool(sync.observed) for sync in syncs)
    narrator.print_check("the new process found no differences: 0 objects written", holds=unchanged)
    report = stream.report
    narrator.print_check(
        f"of {report.attempts} connections meanwhile, {len(report.failures)} failed",
        holds=not report.failures,
    )
    narrator.print_check("an open connection stays open", holds=alive)
    (after,) = stage.lab.probe(CLIENT, objects.STICKY, 80)
    narrator.print_check(
        f"the client of the sticky Service still goes to {before.pod}",
        holds=bool(before.pod) and after.pod == before.pod,
    )


def show_cleanup(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("vipwire cleanup")
    if stage.proxy:
        stage.proxy.stop_proxy()
    removed = stage.run_cleanup()
    narrator.print_check(
        "the log says that vipwire removed the tables of both families",
        holds=all(f"ip_family={family}" in removed for family in FAMILIES) and "removed" in removed,
    )
    (result,) = stage.lab.probe(CLIENT, objects.WEB, 80)
    narrator.print_check(
        f"{objects.WEB} is an ordinary address again: {result.outcome.value}", holds=not result.answer
    )
    narrator.print_check("a second cleanup finds nothing to remove", holds="removed" not in stage.run_cleanup())


def _is_alive(connection: Connection) -> bool:
    try:
        return connection.exchange(b"still there?\n") == b"still there?\n"
    except OSError:
        return False


_PORT = 80
_ESTABLISHED = "01"


def show_ebpf_at_connect(stage: Stage, narrator: Narrator) -> None:
    narrator.print_chapter("ebpf mode: a program gives a socket its endpoint at connect()")
    with contextlib.ExitStack() as stack:
        try:
            cgroup = stack.enter_context(create_own_cgroup())
            more = ("--proxy-mode=ebpf", f"--ebpf-cgroup={cgroup}", "--ebpf-clients=node")
            narrator.print_quote(f"node-1$ vipwire {' '.join((*stage.proxy_command, *more))}")
            syncs = stage.start_proxy(more)
        except (LabError, OSError) as error:
            reason = str(error).strip().splitlines()[-1]
            narrator.print_text(f"This machine cannot run ebpf mode: {reason}")
            return
        narrator.print_quote(format_syncs(syncs))
        _show_connected_socket(stage, narrator)
        _show_ebpf_needs_no_rules(stage, narrator)
        narrator.print_check("it ends with status 0", holds=stage.proxy is not None and stage.proxy.stop_proxy() == 0)
        narrator.print_check("cleanup removes its programs", holds="removed" in stage.run_cleanup())


def _show_connected_socket(stage: Stage, narrator: Narrator) -> None:
    with stage.lab.enter_namespace(NODE):
        client = socket.create_connection((objects.WEB, _PORT), timeout=15)
        table = Path("/proc/thread-self/net/tcp").read_text(encoding="ascii")
    with client:
        told, real = client.getpeername()[0], _find_peer(table, client.getsockname()[1])
    narrator.print_quote(f"getpeername() returns:      {told}:{_PORT}\nthe kernel's own table:     {real}")
    pods = [address for pod in objects.PODS for address in pod.addresses]
    narrator.print_check(
        "the socket is connected to a Pod, but the process sees the Service's address",
        holds=told == objects.WEB and real.rpartition(":")[0] in pods,
    )


def _show_ebpf_needs_no_rules(stage: Stage, narrator: Narrator) -> None:
    """Remove all rules: connections that get their endpoint at connect() need none."""
    if find_program("nft") is None:
        return
    narrator.print_quote("node-1$ nft flush ruleset")
    stage.lab.run(NODE, ["nft", "flush", "ruleset"])
    results = stage.lab.probe(NODE, objects.WEB, _PORT, count=MANY)
    narrator.check_answers(results, objects.PODS, "all 5, without a rule")


def _find_peer(table: str, port: int) -> str:
    """Read the remote end of a connection from /proc/net/tcp; "" if absent."""
    for line in table.splitlines()[1:]:
        _, local, remote, state = line.split()[:4]
        if state == _ESTABLISHED and int(local.partition(":")[2], 16) == port:
            address, _, far = remote.partition(":")
            return f"{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(far, 16)}"
    return ""


SCENES: Sequence[Callable[[Stage, Narrator], None]] = (
    show_opening,
    show_from_pod,
    show_from_outside,
    show_ipv6,
    show_leaving_endpoint,
    show_new_service,
    show_service_without_endpoints,
    show_session_affinity,
    show_kernel_rules,
    show_proxy_restart,
    show_cleanup,
    show_ebpf_at_connect,
    standalone.show_standalone,
)
