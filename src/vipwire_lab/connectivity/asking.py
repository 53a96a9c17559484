"""Asks until all checks pass or the time is over, then finds the causes of those that failed.

A check is an address of a Service that must answer, by family and protocol.
"""

import asyncio
import enum
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import VipwireError
from vipwire.inspect.node.situation import observe_situation, open_kernel
from vipwire.inspect.node.source import read_objects
from vipwire.kube.objects import Object
from vipwire.model.names import ObjectName
from vipwire.model.net import Protocol, format_address
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target, count_pods
from vipwire_lab.connectivity.cause import DNS, find_causes, probe_here
from vipwire_lab.connectivity.names import NameCheck, build_name_checks, judge_name
from vipwire_lab.connectivity.objects import EXTERNAL, PORT, Echo


class Expected(enum.Enum):
    """The result that a check of connections expects."""

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


def build_checks(services: Sequence[Object], node: Sequence[str], families: Sequence[str]) -> list[Check]:
    """Return the checks of the Services, as the API server has them; `node` are this Node's addresses."""
    ports = [(service, port) for service in services for port in service["spec"]["ports"]]
    made = (check for service, port in ports for check in _list_port_checks(service, port, node))
    return list(dict.fromkeys(_skip_unserved(check, families) for check in made))


def _skip_unserved(check: Check, families: Sequence[str]) -> Check:
    if check.target is None or (family := _family(check.target.address)) in families:
        return check
    return replace(check, target=None, skip=f"{check.target.address}: this Node has no {family} address")


def _list_port_checks(service: Object, port: Object, node: Sequence[str]) -> Iterator[Check]:
    name, spec, protocol = service["metadata"]["name"], service["spec"], Protocol[port["protocol"]]
    expected = _EXPECTED.get(name, Expected.ANSWER)
    for address in (each for each in spec.get("clusterIPs") or () if each != "None"):
        yield Check(name, "ClusterIP", Target(address, PORT, protocol), expected)
    for address in node if name.startswith("node-port") else ():
        yield Check(name, "NodePort", Target(address, port["nodePort"], protocol), expected)
    if name == "external-ip":
        for address in spec.get("externalIPs") or EXTERNAL:
            yield Check(name, "external IP", Target(address, PORT, protocol), expected)
    if name == "load-balancer":
        yield from _list_balancer_checks(service, protocol)


def _list_balancer_checks(service: Object, protocol: Protocol) -> Iterator[Check]:
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


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def judge_results(check: Check, results: Sequence[ProbeResult], echoes: Sequence[Echo]) -> str:
    """Return the failure of a check, by its results; "" if all results are right."""
    if check.expected is Expected.REFUSAL:
        wrong = [each for each in results if each.outcome is not Outcome.REFUSED]
        return f"expected a refusal: {wrong[0]}" if wrong else ""
    wrong = [each for each in results if each.outcome is not Outcome.ANSWERED]
    if wrong:
        return f"{len(wrong)} of {len(results)}: {wrong[0]}" if len(results) > 1 else str(wrong[0])
    answered = count_pods(results)
    if check.expected is Expected.ONE and len(answered) > 1:
        return f"one client got {', '.join(sorted(answered))}"
    missing = [each.name for each in echoes if each.name not in answered]
    if check.expected is Expected.EACH and missing:
        return f"{', '.join(missing)} answered none of {len(results)} connections"
    return ""


Document = dict[str, Any]
Question = Check | NameCheck
_PAUSE: Final = 0.2
_DNS_SERVICE: Final = ObjectName("kube-system", "kube-dns")


class Asking:
    """The checks from this Node, and their results."""

    def __init__(
        self, config: Config, node: Sequence[str], families: Sequence[str], echoes: Sequence[Echo], domain: str
    ) -> None:
        self._config, self._node, self._families = config, node, families
        self._echoes, self._domain = echoes, domain
        self._passed: set[Question] = set()
        self._failing: dict[Question, str] = {}
        self._questions: list[Question] = []
        service = read_objects(config).services.get(_DNS_SERVICE)
        held = [format_address(each) for each in service.cluster_ips] if service is not None else []
        self._servers = [each for each in held if _family(each) in families]
        self._no_dns = f"this Node lacks the family of {held[0]}" if held else f"there is no Service {_DNS_SERVICE}"

    def ask_until_settled(
        self,
        read: Callable[[], Coroutine[Any, Any, list[Object]]],
        services: list[Object],
        wait: float,
        tell: Callable[[str], None],
    ) -> None:
        """Ask all; ask those that fail again, with the Services as they are then, for `wait` seconds."""
        ends, round_ = time.monotonic() + wait, 0
        while True:
            round_ += 1
            self._questions = [
                *build_checks(services, self._node, self._families),
                *build_name_checks(services, self._echoes, self._servers, self._domain),
            ]
            self._failing = {}
            for number, each in enumerate(self._questions, 1):
                if each not in self._passed and not getattr(each, "skip", ""):
                    tell(f"asking {number} of {len(self._questions)}" + (f", round {round_}" if round_ > 1 else ""))
                    self._ask_question(each)
            if not self._failing or time.monotonic() >= ends:
                return
            time.sleep(_PAUSE)
            services = asyncio.run(read())

    def _ask_question(self, question: Question) -> None:
        if isinstance(question, NameCheck):
            why = judge_name(question)
        else:
            assert question.target is not None  # noqa: S101  # else it is skipped
            why = judge_results(question, probe_here(question.target, question.options), self._echoes)
        if why:
            self._failing[question] = why
        else:
            self._passed.add(question)

    def make_document(self, refused: dict[str, str]) -> Document:
        """Describe all checks. `refused` are Services that could not be made, and why."""
        found = self._find_causes()
        results = [
            _question_document(each, self._failing.get(each, ""), found.get(each, [])) for each in self._questions
        ]
        results += [_skip_document(name, why) for name, why in refused.items()]
        if not self._servers:
            results.append(_skip_document("headless", self._no_dns))
        counts = {state: sum(each["state"] == state for each in results) for state in ("passed", "failed", "skipped")}
        return {**counts, "checks": results}

    def _find_causes(self) -> dict[Question, list[str]]:
        if not self._failing:
            return {}
        with open_kernel(self._config) as kernel:
            try:
                situation = observe_situation(self._config, read_objects(self._config), kernel)
            except VipwireError as error:
                return {each: [f"cannot read the objects: {error}"] for each in self._failing}
        found: dict[Question, list[str]] = {}
        for each in self._failing:
            if isinstance(each, NameCheck):
                target, refused = _server_target(each), False
            else:
                assert each.target is not None  # noqa: S101  # else it is skipped
                target, refused = each.target, each.expected is Expected.REFUSAL
            found[each] = find_causes(situation, target, refused=refused)
        return found


def _server_target(check: NameCheck) -> Target:
    return Target(check.server, DNS, Protocol[check.protocol.upper()])


def _question_document(question: Question, why: str, cause: Sequence[str]) -> Document:
    at: Target | None
    if isinstance(question, NameCheck):
        at, what, expected = _server_target(question), f"DNS {question.type}", "addresses"
    else:
        at, what, expected = question.target, question.what, question.expected.value
        if question.skip:
            return _skip_document(question.service, question.skip) | {"what": what}
    assert at is not None  # noqa: S101  # else it is skipped
    return {
        "service": question.service,
        "what": what,
        "family": _family(at.address),
        "protocol": at.protocol.label,
        "target": str(at),
        "expected": expected,
        "state": "failed" if why else "passed",
        "why": why,
        "cause": list(cause),
    }


def _skip_document(service: str, why: str) -> Document:
    nothing = dict.fromkeys(("family", "protocol", "target", "expected"))
    return {"service": service, "what": "-", **nothing, "state": "skipped", "why": why, "cause": []}
