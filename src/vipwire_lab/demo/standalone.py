"""The scenes of `vipwire up`: kubectl, health checks and names, without a cluster."""

from vipwire_lab.demo import machines, objects
from vipwire_lab.demo.apiserver import Standalone, program
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.stage import NODE, Stage
from vipwire_lab.demo.traffic import CLIENT, MANY, NODE_ADDRESS, POD

POOL = "198.51.100.64/28"
DNS = "10.96.0.10"
_DOMAIN = "hello.default.svc.cluster.local"
_FLAGS = (
    *("--node-name", NODE, "--dns-address", NODE_ADDRESS, "--load-balancer-range", POOL),
    *(machines.FLAGS if objects.TOPOLOGY.lan else ()),
)
_PATIENCE = 60.0
_SILENT = 0.3
"""Seconds after which a connection in a lab is taken for unanswered."""


def without_a_cluster(stage: Stage, narrator: Narrator) -> None:
    """Start `vipwire up`, and play with it what follows; say so where there is no kubectl."""
    narrator.chapter("Without a cluster: vipwire up, and kubectl")
    kubectl = program("kubectl")
    if kubectl is None:
        narrator.say("There is no kubectl on this machine to show it with. (Debian: apt install kubernetes-client)")
        return
    here = Standalone(stage.lab, NODE, stage.folder / "up", kubectl)
    narrator.say("An API server, its store, controllers, health checks, DNS and the proxy, in one process on node-1:")
    flags = (
        " ".join(_FLAGS)
        .replace(" --load", " \\\n            --load", 1)
        .replace(" --bind", " \\\n            --bind")
    )
    narrator.quote(f"{NODE}$ vipwire up --data-dir DIRECTORY {flags}")
    with narrator.waiting("starting vipwire up"):
        narrator.quote("\n".join(here.start(*_FLAGS)))
    narrator.quote(f"{NODE}$ kubectl apply -f hello.yaml        (a Service, and five Pods that run already)")
    narrator.quote(here.apply([objects.hello(), *map(objects.workload, objects.PODS)]))
    with narrator.waiting("waiting for the Pods' readiness probes"):
        here.kubectl("wait", "--for=condition=Ready", "pod", "--all", f"--timeout={_PATIENCE:.0f}s")
    _balanced(stage, narrator, here)
    _health_checked(stage, narrator, here)
    _named(stage, narrator, here)
    machines.killed(stage, narrator, here)
    _deleted(stage, narrator, here)


def _balanced(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    _show(narrator, here, "get", "services")
    _show(narrator, here, "get", "endpointslices")
    address, outside = _addresses(here)
    stage.until_answered(POD.name, address, 80)
    results = stage.lab.probe(POD.name, address, 80, count=MANY)
    narrator.results(results)
    narrator.check_answers(results, objects.PODS, f"{address}:80 from {POD.name}: all 5 Pods")
    results = stage.lab.probe(CLIENT, outside, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"{outside}:80 from {CLIENT}: all 5 Pods")


def _health_checked(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    narrator.chapter("A workload breaks; its readiness probe takes it out, and takes it back")
    going = objects.PODS[3]
    rest = [pod for pod in objects.PODS if pod is not going]
    address, outside = _addresses(here)
    stage.lab.stop(going.name, [objects.HELLO_PORT])
    seconds, _ = here.until(lambda said: "False" in said, *_readiness_of(going.name))
    narrator.say(f"{going.name} has closed its port; {seconds:.1f} s later:")
    _show(narrator, here, "get", "pods")
    with narrator.waiting("the kernel is told"):
        stage.until_gone(POD.name, address, 80, going)
    results = stage.lab.probe(POD.name, address, 80, count=MANY)
    narrator.check_answers(results, rest, f"the other 4, never {going.name}")
    stage.lab.serve(going.name, [objects.HELLO_PORT])
    seconds, _ = here.until(lambda said: "True" in said, *_readiness_of(going.name))
    stage.until_seen(CLIENT, outside, 80, objects.PODS)
    results = stage.lab.probe(CLIENT, outside, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"all 5 again: its probe has been answered {seconds:.1f} s later")


def _named(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    narrator.chapter("DNS, at the address that people's resolv.conf has")
    dig = program("dig")
    if dig is None:
        narrator.say("There is no dig on this machine to ask with. (Debian: apt install bind9-dnsutils)")
        return
    address, _ = _addresses(here)
    for name, kind in ((_DOMAIN, "A"), (f"_http._tcp.{_DOMAIN}", "SRV")):
        said = stage.lab.run(POD.name, [dig, f"@{DNS}", "+short", name, kind]).stdout.strip()
        narrator.quote(f"{POD.name}$ dig @{DNS} +short {name} {kind}\n{said}")
        wanted = address if kind == "A" else f"0 100 80 {_DOMAIN}."
        narrator.check(f"{'the ClusterIP' if kind == 'A' else 'the named port'} of hello", holds=said == wanted)


def _deleted(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    narrator.chapter("Deleted, its addresses are nobody's; and vipwire up ends")
    address, outside = _addresses(here)
    _show(narrator, here, "delete", "service", "hello")
    stage.until_unanswered(POD.name, address, 80)
    for host, gone in ((POD.name, address), (CLIENT, outside)):
        (result,) = stage.lab.probe(host, gone, 80, timeout=_SILENT)
        narrator.check(f"{host} to {gone}:80: nobody's, {result.outcome.value}", holds=not result.answer)
    status = here.process.end(_PATIENCE) if here.process else 1
    narrator.check("it ends on SIGTERM with status 0", holds=status == 0)


def _show(narrator: Narrator, here: Standalone, *arguments: str) -> None:
    said = here.kubectl(*arguments)
    narrator.quote(f"{NODE}$ kubectl {' '.join(arguments)}\n{said}")


def _addresses(here: Standalone) -> tuple[str, str]:
    """Read hello's ClusterIP and its load balancer's address."""
    path = "jsonpath={.spec.clusterIP} {.status.loadBalancer.ingress[0].ip}"
    _, said = here.until(lambda said: len(said.split()) == 2, "get", "service", "hello", "-o", path)
    inside, outside = said.split()
    return inside, outside


def _readiness_of(pod: str) -> tuple[str, ...]:
    return "get", "pod", pod, "-o", 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
