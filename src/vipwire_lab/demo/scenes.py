"""The demo as a whole: its scenes in order, its beginning, a look at the table, and its verdict.

Each scene shows something, says why it is so, and checks that it is so.
"""

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vipwire_lab.demo import changes, connecting, objects, standalone, traffic
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.stage import NODE, Stage, as_lines
from vipwire_lab.lab.called import as_called

_MAP = """\
client 203.0.113.2 ─ network ─┬─ node-1 192.168.0.1 ─ pod-1a 10.244.1.11, pod-1b .12, pod-1c .13
 (outside)                    └─ node-2 192.168.0.2 ─ pod-2a 10.244.2.11, pod-2b .12"""
_NEXT = """\
vipwire lab up --proxy-mode nftables      # the same, to stay
vipwire lab probe client 10.96.0.10:80 -n 100
vipwire lab exec node-1 -- vipwire status
vipwire lab exec node-1 -- nft list table ip vipwire
vipwire lab view                          # on a page, for a browser
vipwire lab down                          # ends it
vipwire lab compare                       # the same in every mode

How a packet goes through these rules: docs/packet-path.md"""


def run_demo() -> int:
    """Play all scenes; return 0 if all was as it was said to be, 1 if not. Raise LabError if it cannot go on."""
    narrator = Narrator()
    narrator.title("vipwire: Kubernetes Services on one machine, with real packets")
    stage = Stage()
    with _terminated_as_interrupted():
        with narrator.waiting("building two nodes, five Pods and a client out of network namespaces"):
            stage.build()
        with stage:
            for scene in SCENES:
                scene(stage, narrator)
    narrator.chapter("Nothing is left")
    narrator.check("the lab's namespaces, processes and files are gone", holds=stage.gone)
    return verdict(narrator)


def verdict(narrator: Narrator) -> int:
    """Print the result, and return the exit status."""
    if narrator.failures:
        narrator.say(f"{len(narrator.failures)} of {narrator.checks} things were NOT as said:")
        for failure in narrator.failures:
            narrator.say(f"  {failure}")
        return 1
    narrator.say(f"All {narrator.checks} things were as said. Try next:")
    narrator.quote(as_called(_NEXT))
    return 0


def opening(stage: Stage, narrator: Narrator) -> None:
    """Start the proxy."""
    narrator.chapter("A cluster, and vipwire on node-1")
    narrator.quote(_MAP)
    narrator.say(
        "Everything is a network namespace; your own network is not touched. The Pods answer with their name and the "
        "address they see. Services are YAML files in a folder that vipwire watches, in place of an API server."
    )
    stage.write("nodes", objects.nodes())
    for name in ("web", "shop", "empty", "sticky"):
        stage.write(name, getattr(objects, name)())
    narrator.quote(f"node-1$ vipwire {' '.join(stage.proxy_command)}")
    with narrator.waiting("starting vipwire"):
        syncs = stage.start_proxy()
    narrator.quote(as_lines(syncs))
    narrator.check(
        "one transaction for each family has put 4 Services into an empty kernel",
        holds=all(sync.observed == 0 and sync.added > 0 and not sync.changed + sync.removed for sync in syncs),
    )


def in_the_kernel(stage: Stage, narrator: Narrator) -> None:
    """Show the table."""
    narrator.chapter("What the kernel holds: constant rules, and Services as data in maps")
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin")
    if nft is None:
        narrator.say("There is no nft command on this machine to show it with. (Debian: apt install nftables)")
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
    narrator.quote("node-1$ nft list table ip vipwire        (an excerpt)")
    for text in parts:
        narrator.quote("\n".join(_excerpt(text)))
    narrator.check(
        "the element of web's ClusterIP names the Service", holds='comment "default/web:http"' in service_ips
    )
    narrator.say(
        "1:5 is the class of web: the map `spread` sends it to service-pick-5, which draws one of five slots, 0:1 to "
        "0:5; in that slot service-endpoints has the Pod. More Services are more elements; the rules stay these."
    )


SCENES: Sequence[Callable[[Stage, Narrator], None]] = (
    opening,
    traffic.from_a_pod,
    traffic.from_outside,
    traffic.over_ipv6,
    changes.endpoint_leaves,
    changes.service_appears,
    traffic.nobody_there,
    traffic.clients_stick,
    in_the_kernel,
    changes.proxy_restarts,
    changes.cleaned_up,
    connecting.at_connect,
    standalone.without_a_cluster,
)


def _excerpt(listing: str) -> Iterator[str]:
    """Extract from a listing what lies inside the table, and of the elements those of web."""
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
