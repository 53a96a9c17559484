"""The scenes of the demo, in order. Each shows something, says why it is so, and checks that it is so."""

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vipwire.lab.continuous import Connection
from vipwire.lab.demo import objects
from vipwire.lab.demo.stage import FAMILIES, NODE, Stage, Sync
from vipwire.lab.demo.teller import Teller
from vipwire.lab.outcome import Outcome, ProbeResult
from vipwire.model.net import Protocol

CLIENT, CLIENT_ADDRESS, NODE_ADDRESS = "client", "203.0.113.2", "192.168.0.1"
CLIENT_IPV6 = "2001:db8:113::2"
POD = objects.PODS[0]
OTHER_POD = objects.PODS[1]
_MANY = 100
_AT_ONCE = 0.5
"""Seconds. A SYN that nobody refuses is repeated after one second: whoever is refused sooner was told at once."""

_MAP = """\
client 203.0.113.2 ─ network ─┬─ node-1 192.168.0.1 ─ pod-1a 10.244.1.11, pod-1b .12, pod-1c .13
 (outside)                    └─ node-2 192.168.0.2 ─ pod-2a 10.244.2.11, pod-2b .12"""
_NEXT = """\
vipwire lab up                                 the same lab, this time it stays
mkdir /tmp/services; vipwire lab manifests > /tmp/services/lab.yaml
vipwire lab exec node-1 -- vipwire proxy --manifests /tmp/services --hostname-override node-1
                                               then, in another terminal, edit lab.yaml and ask again:
vipwire lab probe client 10.96.0.10:80 -n 100
vipwire lab exec node-1 -- nft list table ip vipwire
vipwire lab down
docs/packet-path.md                            the way of a packet through the rules that you have seen"""


def run_demo() -> int:
    """Play all scenes; return 0 if all was as it was said to be, 1 if not. Raise LabError if it cannot go on."""
    teller = Teller()
    teller.title("vipwire: Kubernetes Services on one machine, with real packets")
    stage = Stage()
    with _terminated_as_interrupted():
        with teller.waiting("building two nodes, five Pods and a client out of network namespaces"):
            stage.build()
        with stage:
            for scene in SCENES:
                scene(stage, teller)
    teller.chapter("Nothing is left")
    teller.check("the lab's namespaces, processes and files are gone", holds=stage.gone)
    return verdict(teller)


def verdict(teller: Teller) -> int:
    """Say how it went, and return the exit status."""
    if teller.failures:
        teller.say(f"{len(teller.failures)} of {teller.checks} things were NOT as said:")
        for failure in teller.failures:
            teller.say(f"  {failure}")
        return 1
    teller.say(f"All {teller.checks} things were as said. Try next:")
    teller.quote(_NEXT)
    return 0


def opening(stage: Stage, teller: Teller) -> None:
    """Start the proxy."""
    teller.chapter("A cluster, and vipwire on node-1")
    teller.quote(_MAP)
    teller.say(
        "Everything is a network namespace; your own network is not touched. The Pods answer with their name and the "
        "address they see. Services are YAML files in a folder that vipwire watches, in place of an API server."
    )
    stage.write("nodes", objects.nodes())
    for name in ("web", "shop", "empty", "sticky"):
        stage.write(name, getattr(objects, name)())
    teller.quote(f"node-1$ vipwire {' '.join(stage.proxy_command)}")
    with teller.waiting("starting vipwire"):
        syncs = stage.start_proxy()
    _quote(teller, syncs)
    teller.check(
        "one transaction for each family has put 4 Services into an empty kernel",
        holds=all(sync.observed == 0 and sync.added > 0 and not sync.changed + sync.removed for sync in syncs),
    )


def from_a_pod(stage: Stage, teller: Teller) -> None:
    """Connect from a Pod to a ClusterIP."""
    teller.chapter(f"A Pod asks the ClusterIP {objects.WEB} of Service web, {_MANY} times")
    results = stage.lab.probe(POD.name, objects.WEB, 80, count=_MANY)
    teller.results(results)
    _check_all(teller, results, {pod.name for pod in objects.PODS}, "all 5 Pods, chosen at random")
    others = [result for result in results if result.pod != POD.name]
    teller.check(
        f"the others saw {POD.name}'s own address: no source NAT between Pods",
        holds=all(result.saw == POD.addresses[0] for result in others),
    )
    itself = [result for result in results if result.pod == POD.name]
    teller.check(
        f"{POD.name} was also sent to itself, and saw its node: else its answer would not pass the NAT",
        holds=bool(itself) and all(result.saw != POD.addresses[0] for result in itself),
    )
    udp = stage.lab.probe(POD.name, objects.WEB, 53, Protocol.UDP, count=20)
    teller.check("UDP works the same way", holds=all(result.answer for result in udp))


def from_outside(stage: Stage, teller: Teller) -> None:
    """Connect from outside to a node port, and to a load balancer's address."""
    teller.chapter("A client outside asks a node port, then a load balancer's address")
    port = objects.WEB_NODE_PORT
    teller.say(f"{CLIENT} to {NODE_ADDRESS}:{port}, which is web's node port:")
    results = stage.lab.probe(CLIENT, NODE_ADDRESS, port, count=_MANY)
    teller.results(results)
    _check_all(teller, results, {pod.name for pod in objects.PODS}, "all 5 Pods, on both nodes")
    teller.check(
        "they saw node-1, so that their answers come back through it",
        holds={result.saw for result in results} == {NODE_ADDRESS},
    )
    teller.say(f"{CLIENT} to {objects.SHOP_IP}:80, Service shop with externalTrafficPolicy: Local:")
    results = stage.lab.probe(CLIENT, objects.SHOP_IP, 80, count=_MANY)
    teller.results(results)
    _check_all(teller, results, {pod.name for pod in objects.LOCAL_PODS}, "the Pods on this node only")
    teller.check(
        "which is why they can see who the client really is", holds={r.saw for r in results} == {CLIENT_ADDRESS}
    )


def over_ipv6(stage: Stage, teller: Teller) -> None:
    """Connect over IPv6."""
    teller.chapter("The same over IPv6")
    results = stage.lab.probe(OTHER_POD.name, objects.WEB_IPV6, 80, count=_MANY)
    _check_all(
        teller,
        results,
        {pod.name for pod in objects.PODS},
        f"[{objects.WEB_IPV6}]:80 from {OTHER_POD.name}: all 5 Pods",
    )
    results = stage.lab.probe(CLIENT, objects.SHOP_IPV6, 80, count=_MANY)
    _check_all(
        teller,
        results,
        {pod.name for pod in objects.LOCAL_PODS},
        f"[{objects.SHOP_IPV6}]:80 from {CLIENT}: the Pods on node-1",
    )
    teller.check(f"and they saw {CLIENT_IPV6}", holds={result.saw for result in results} == {CLIENT_IPV6})


def endpoint_leaves(stage: Stage, teller: Teller) -> None:
    """Take an endpoint away under an open connection, and bring it back."""
    with stage.lab.connect(CLIENT, NODE_ADDRESS, objects.WEB_NODE_PORT) as connection:
        going = connection.answer.pod
        teller.chapter(f"{going} leaves while a connection to it is open, and comes back")
        rest = [pod for pod in objects.PODS if pod.name != going]
        teller.say(f"{going} is taken out of web's EndpointSlices:")
        _quote(teller, stage.change("web", objects.web(rest)))
        results = stage.lab.probe(POD.name, objects.WEB, 80, count=_MANY)
        _check_all(teller, results, {pod.name for pod in rest}, f"the other 4, never {going}")
        teller.check("the open connection lives on", holds=_alive(connection))
    teller.say("It is put back:")
    _quote(teller, stage.change("web", objects.web()))
    results = stage.lab.probe(POD.name, objects.WEB, 80, count=_MANY)
    _check_all(teller, results, {pod.name for pod in objects.PODS}, "all 5 again")


def service_appears(stage: Stage, teller: Teller) -> None:
    """Create a Service."""
    teller.chapter("A Service appears")
    before = stage.lab.probe(POD.name, objects.LATE, 80)
    teller.check(f"{objects.LATE} is nobody's: {before[0].outcome.value}", holds=not before[0].answer)
    teller.say("late.yaml is put into the folder:")
    stage.write("late", objects.late())
    seconds, result = stage.until_answered(POD.name, objects.LATE, 80)
    teller.check(f"{seconds * 1000:.0f} ms later {result.pod} answers", holds=bool(result.answer))


def nobody_there(stage: Stage, teller: Teller) -> None:
    """Ask a Service without endpoints."""
    teller.chapter("A Service without endpoints refuses, at once")
    for host in (POD.name, CLIENT):
        (result,) = stage.lab.probe(host, objects.EMPTY, 80, timeout=3.0)
        teller.check(
            f"{host} to {objects.EMPTY}:80: {result.outcome.value} after {result.duration * 1000:.1f} ms",
            holds=result.outcome is Outcome.REFUSED and result.duration < _AT_ONCE,
        )


def clients_stick(stage: Stage, teller: Teller) -> None:
    """Ask a Service with session affinity."""
    teller.chapter(f"Session affinity: each client of {objects.STICKY} stays where it went first")
    clients = (
        (CLIENT, CLIENT_ADDRESS),
        (CLIENT, "203.0.113.130"),
        *((pod.name, pod.addresses[0]) for pod in objects.PODS[:3]),
    )
    for host, source in clients:
        results = stage.lab.probe(host, objects.STICKY, 80, source=source, count=20, parallel=1)
        who = {result.pod for result in results}
        names = ", ".join(sorted(who))
        teller.check(f"20 connections from {source}: all to {names}", holds=len(who) == 1 and "" not in who)


def in_the_kernel(stage: Stage, teller: Teller) -> None:
    """Look at the table."""
    teller.chapter("What the kernel holds: constant rules, and Services as data in maps")
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin")
    if nft is None:
        teller.say("There is no nft command on this machine to show it with. (Debian: apt install nftables)")
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
    teller.quote("node-1$ nft list table ip vipwire        (an excerpt)")
    for text in parts:
        teller.quote("\n".join(_excerpt(text)))
    teller.check(
        "the element of web's ClusterIP names the Service", holds='comment "default/web:http"' in service_ips
    )
    teller.say(
        "1:5 is the class of web: the map `spread` sends it to service-pick-5, which draws one of five slots, 0:1 to "
        "0:5; in that slot service-endpoints has the Pod. More Services are more elements; the rules stay these."
    )


def proxy_restarts(stage: Stage, teller: Teller) -> None:
    """Restart the proxy under traffic."""
    teller.chapter("vipwire is restarted under traffic")
    (before,) = stage.lab.probe(CLIENT, objects.STICKY, 80)
    with (
        stage.lab.connect(CLIENT, NODE_ADDRESS, objects.WEB_NODE_PORT) as connection,
        stage.lab.continuous(POD.name, objects.WEB, 80) as stream,
    ):
        stream.wait_for(20)
        status = stage.proxy.end() if stage.proxy else 1
        teller.check("it ends on SIGTERM with status 0 and leaves its rules", holds=status == 0)
        stream.wait_for(20)
        with teller.waiting("starting vipwire"):
            syncs = stage.start_proxy()
        stream.wait_for(20)
        alive = _alive(connection)
    _quote(teller, syncs)
    teller.check("the new process found all as it should be: 0 objects written", holds=_nothing_written(syncs))
    report = stream.report
    teller.check(
        f"{report.attempts} connections were made meanwhile, {len(report.failures)} failed",
        holds=not report.failures,
    )
    teller.check("an open connection lives on", holds=alive)
    (after,) = stage.lab.probe(CLIENT, objects.STICKY, 80)
    teller.check(
        f"the client of the sticky Service still goes to {before.pod}",
        holds=bool(before.pod) and after.pod == before.pod,
    )


def cleaned_up(stage: Stage, teller: Teller) -> None:
    """Remove the rules."""
    teller.chapter("vipwire cleanup")
    if stage.proxy:
        stage.proxy.end()
    removed = stage.cleanup()
    teller.check(
        "it says that it removed the tables of both families",
        holds=all(f"ip_family={family}" in removed for family in FAMILIES) and "removed" in removed,
    )
    (result,) = stage.lab.probe(CLIENT, objects.WEB, 80)
    teller.check(f"{objects.WEB} is an address like any other again: {result.outcome.value}", holds=not result.answer)
    teller.check("a second cleanup finds nothing to remove", holds="removed" not in stage.cleanup())


SCENES: Sequence[Callable[[Stage, Teller], None]] = (
    opening,
    from_a_pod,
    from_outside,
    over_ipv6,
    endpoint_leaves,
    service_appears,
    nobody_there,
    clients_stick,
    in_the_kernel,
    proxy_restarts,
    cleaned_up,
)


def _check_all(teller: Teller, results: Sequence[ProbeResult], pods: set[str], words: str) -> None:
    answered = sum(1 for result in results if result.answer)
    teller.check(
        f"{answered} of {len(results)} answered, by {words}",
        holds=answered == len(results) and {result.pod for result in results} == pods,
    )


def _alive(connection: Connection) -> bool:
    try:
        return connection.exchange(b"still there?\n") == b"still there?\n"
    except OSError:
        return False


def _nothing_written(syncs: Sequence[Sync]) -> bool:
    return all(sync.written == 0 and sync.size == 0 and bool(sync.observed) for sync in syncs)


def _quote(teller: Teller, syncs: Sequence[Sync]) -> None:
    teller.quote("\n".join(f"synced {sync}" for sync in syncs))


def _excerpt(listing: str) -> Iterator[str]:
    """Take from a listing what lies inside the table, and of the elements those of web."""
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
