"""Why a check failed: by the plan and the kernel's objects, as `vipwire explain` reads them, and by the endpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vipwire.errors import DecodeError, UnsupportedError, VipwireError
from vipwire.inspect.explain.document import explain_document
from vipwire.inspect.explain.explanation import explain_here
from vipwire.inspect.explain.packet import read_packet
from vipwire.inspect.node.situation import Situation
from vipwire.model.net import Protocol
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target
from vipwire_lab.cluster.probe import probe

HERE: Final = Path("/proc/thread-self/ns/net")
DNS: Final = 53
_MOST: Final = 5


def find_causes(situation: Situation, target: Target, *, refused: bool = False) -> list[str]:
    """Return why connections to an address fail; of an address that must refuse, why it answers."""
    try:
        document = _explain_target(situation, target)
    except VipwireError as error:
        return [f"explain: {error}"]
    found = list(_find_cause_in_rules(document, "rejected" if refused else "answered"))
    found += [] if found or refused else list(_find_silent_endpoints(document, target))
    if not found:
        found.append("plan, kernel and endpoints are correct: another program or the network drops the packets")
    return [*found, f"see: vipwire explain {target}"]


def _explain_target(situation: Situation, target: Target) -> dict[str, Any]:
    packet = read_packet(situation, "", str(target))
    try:
        return explain_document(explain_here(situation, packet))
    except UnsupportedError:  # this node lacks the family
        return {}


def _find_cause_in_rules(document: dict[str, Any], expected: str) -> Iterator[str]:
    """Yield the differences of the plan and of the kernel from the expected behaviour."""
    if not document:
        yield "this node lacks the family"
        return
    if document["outcome"] != expected:
        yield f"plan: {document['outcome']}: {'; '.join(document['why'])}"
    kernel = document["kernel"]
    if kernel["state"] != "same":
        yield f"kernel: {kernel['state']}: {kernel['difference']}"
        odd = [step for step in kernel["path"] if step["state"] != "as planned"]
        yield from (f"kernel: {step['object']}: {step['state']}: {step['text']}" for step in odd[:_MOST])


def _find_silent_endpoints(document: dict[str, Any], target: Target) -> Iterator[str]:
    """Ask each endpoint directly; yield those that do not answer. A DNS server need only accept a connection."""
    names = target.port == DNS
    for each in document["endpoints"]:
        direct = Target(each["address"], each["port"], Protocol.TCP if names else target.protocol)
        (result,) = probe_here(direct, ProbeOptions(timeout=1.0))
        accepted = names and result.outcome in (Outcome.RESET, Outcome.TIMED_OUT) and "SYN" not in result.progress
        if result.outcome is not Outcome.ANSWERED and not accepted:
            yield f"endpoint {direct}: {result} when asked directly"


def probe_here(target: Target, options: ProbeOptions) -> list[ProbeResult]:
    """Connect from this network namespace. An answer of another program counts as a reset."""
    try:
        return probe(HERE, target, options)
    except DecodeError:
        return [ProbeResult(Outcome.RESET, 0.0, progress="another program answers")]
