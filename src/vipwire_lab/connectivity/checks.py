"""What must answer: each address of each Service, by family and protocol; and how answers are judged."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vipwire.kube.objects import Object
from vipwire.model.net import Protocol
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target, pods_of
from vipwire_lab.connectivity.objects import EXTERNAL, PORT, Echo


class Expected(enum.Enum):
    """What connections must meet."""

    ANSWER = "an answer"
    EACH = "an answer of each endpoint"
    ONE = "one endpoint for one client"
    REFUSAL = "a refusal"


@dataclass(frozen=True, slots=True)
class Check:
    """An address to ask. A check with a reason to `skip` is not made."""

    service: str
    what: str
    target: Target | None
    expected: Expected = Expected.ANSWER
    skip: str = ""

    @property
    def options(self) -> ProbeOptions:
        many = {Expected.EACH: (16, 4), Expected.ONE: (6, 1)}
        count, parallel = many.get(self.expected, (1, 1))
        return ProbeOptions(count=count, parallel=parallel, timeout=1.0)


_EXPECTED: Final = {
    "cluster-ip": Expected.EACH,
    "affinity": Expected.ONE,
    "no-endpoints": Expected.REFUSAL,
}


def checks_of(services: Sequence[Object], node: Sequence[str], families: Sequence[str]) -> Iterator[Check]:
    """Yield the checks of the Services, as the API server has them; `node` are this Node's addresses."""
    for service in services:
        for port in service["spec"]["ports"]:
            protocol = Protocol[port["protocol"]]
            yield from _of_port(service, port, protocol, node, families)


def _of_port(
    service: Object, port: Object, protocol: Protocol, node: Sequence[str], families: Sequence[str]
) -> Iterator[Check]:
    name, spec = service["metadata"]["name"], service["spec"]
    expected = _EXPECTED.get(name, Expected.ANSWER)
    addresses = [each for each in spec.get("clusterIPs") or () if each != "None"]
    for address in addresses:
        yield Check(name, "ClusterIP", Target(address, PORT, protocol), expected)
    if name.startswith("node-port"):
        for address in node:
            if _is_served(address, families):
                yield Check(name, "NodePort", Target(address, port["nodePort"], protocol), expected)
    if name == "external-ip":
        for address in spec.get("externalIPs") or EXTERNAL:
            if _is_served(address, families):
                yield Check(name, "external IP", Target(address, PORT, protocol), expected)
    if name == "load-balancer":
        yield from _of_balancer(service, protocol)


def _of_balancer(service: Object, protocol: Protocol) -> Iterator[Check]:
    given = (service.get("status") or {}).get("loadBalancer", {}).get("ingress") or ()
    if not given:
        yield Check("load-balancer", "load balancer", None, skip="no load balancer has assigned an address")
    for entry in given:
        if "ip" not in entry:
            yield Check("load-balancer", "load balancer", None, skip=f"{entry.get('hostname')} is not an IP address")
        elif entry.get("ipMode") == "Proxy":
            yield Check("load-balancer", "load balancer", None, skip=f"{entry['ip']} is a proxy's")
        else:
            yield Check("load-balancer", "load balancer", Target(entry["ip"], PORT, protocol))


def _is_served(address: str, families: Sequence[str]) -> bool:
    return ("IPv6" if ":" in address else "IPv4") in families


def judge(check: Check, results: Sequence[ProbeResult], echoes: Sequence[Echo]) -> str:
    """Return what is wrong with the results of a check; "" if nothing is."""
    if check.expected is Expected.REFUSAL:
        wrong = [each for each in results if each.outcome is not Outcome.REFUSED]
        return f"expected a refusal: {wrong[0]}" if wrong else ""
    wrong = [each for each in results if each.outcome is not Outcome.ANSWERED]
    if wrong:
        return f"{len(wrong)} of {len(results)}: {wrong[0]}" if len(results) > 1 else str(wrong[0])
    answered = pods_of(results)
    if check.expected is Expected.ONE and len(answered) > 1:
        return f"one client got {', '.join(sorted(answered))}"
    missing = [each.name for each in echoes if each.name not in answered]
    if check.expected is Expected.EACH and missing:
        return f"{', '.join(missing)} answered none of {len(results)} connections"
    return ""
