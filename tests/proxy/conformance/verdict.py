"""Compares `vipwire explain` with the fate of packets. Pure.

Its statement is the fate by the kernel's objects (`walk`), or the plan if the mode cannot show a packet's path. While
the kernel holds the plan both must agree; after other programs' changes the kernel's counts.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from tests.proxy.conformance.proxy import Answer as Page

from vipwire.http_server.exchange import Reply
from vipwire.inspect.explain.explanation import (
    Agreement,
    Explanation,
    compare_kernel_with_plan,
    find_bypassed,
    find_seen_source,
)
from vipwire.model.net import Address, format_address, format_endpoint, parse_address
from vipwire.model.spread import Algorithm
from vipwire.proxy_daemon.serve.service_health import WEIGHT_HEADER
from vipwire.reconcile.steps import End
from vipwire_lab.cluster.outcome import Outcome, ProbeResult

Endpoint = tuple[Address, int]
_UNLIKELY = 1e-9
_MARGIN = 1.0
"""Seconds that an affinity must have left to be certain at the packets' arrival."""
_ENDS = {
    End.ANSWERED: {Outcome.ANSWERED},
    End.DROPPED: {Outcome.TIMED_OUT},
    End.REJECTED: {Outcome.REFUSED},
    End.UNTOUCHED: {Outcome.REFUSED, Outcome.UNREACHABLE, Outcome.ANSWERED},
}


def disagreement(
    explanation: Explanation,
    results: Sequence[ProbeResult],
    after: Explanation | None = None,
    age: float = 0.0,
    *,
    relayed: bool = False,
) -> str:
    """Return the difference between an explanation and the connections' results, "" if none.

    `after` is the explanation at their end, if earlier connections decide; `age` is the first one's age in seconds at
    their start. With `relayed` connections endpoints see the relay.
    """
    differences = _differences(explanation, results, after, age)
    sources = () if relayed else _sources(explanation, results)
    return next(itertools.chain(differences, sources), "")


def answering(explanation: Explanation) -> frozenset[Address]:
    """Return the predicted answering addresses; fail for another prediction, or another kernel state."""
    agrees, words = compare_kernel_with_plan(explanation)
    assert agrees is not Agreement.OTHERWISE, f"the kernel would do otherwise: {words}"
    assert explanation.planned is End.ANSWERED, f"it says {explanation.planned.value}: {explanation.outcome}"
    return frozenset(address for address, _ in _pool(explanation))


def page_disagreement(explanation: Explanation, page: Page) -> str:
    """Return the difference between an explanation and a health check node port's answer, "" if none.

    Ignores whether the kernel holds the plan: see docs/modes/ipvs.md.
    """
    said = [check.answer(proxy_healthy=True) for check in explanation.health_checks]
    if not said:
        return f"it says that nobody answers, and {page} did" if page.status else ""
    same = [(page.status, page.body, page.headers.get(WEIGHT_HEADER)) == _page(each) for each in said]
    return "" if any(same) else f"it says {said}, and that was {page}"


def _page(answer: Reply) -> tuple[int, str, str]:
    return answer.status, str(answer.body), str(answer.headers[WEIGHT_HEADER])


def _differences(
    explanation: Explanation, results: Sequence[ProbeResult], after: Explanation | None, age: float
) -> Iterator[str]:
    agrees, words = compare_kernel_with_plan(explanation)
    walk, delta = explanation.walk, explanation.side.delta
    if walk is not None and agrees is not Agreement.SAME and not delta:
        yield f"the kernel holds what is planned, yet: {words}"
    end = explanation.planned if walk is None else walk.end
    if end is End.UNKNOWN:
        yield f"it cannot tell: {words}"
        return
    allowed = _ENDS[end] if not find_bypassed(explanation) else _ENDS[end] | {Outcome.TIMED_OUT}
    for result in results:
        if result.outcome not in allowed:
            yield f"it says {end.value}, and the packet was {result}"
    answers = [_endpoint(result) for result in results if result.answer]
    if end is End.UNTOUCHED:
        target = explanation.packet.destination, explanation.packet.port
        yield from (f"it says untouched, and {_text(each)} answered" for each in answers if each != target)
    elif end is End.ANSWERED:
        yield from _answers(explanation, answers)
        yield from _shares(explanation, answers)
        yield from _memories(explanation, answers, after, age)


def _answers(explanation: Explanation, answers: Iterable[Endpoint]) -> Iterator[str]:
    expected = _pool(explanation)
    names = ", ".join(map(_text, expected))
    yield from (
        f"it names {names}, and {_text(endpoint)} answered" for endpoint in answers if endpoint not in expected
    )


def _sources(explanation: Explanation, results: Sequence[ProbeResult]) -> Iterator[str]:
    """Yield endpoints that saw another source than predicted; none if the kernel differs from the plan."""
    if compare_kernel_with_plan(explanation)[0] is Agreement.OTHERWISE:
        return
    targets = {(target.address, target.port): target for target in explanation.pool}
    for result in results:
        target = targets.get(_endpoint(result)) if result.answer else None
        if target is None:
            continue
        sees = find_seen_source(explanation, target)
        said = "nothing" if sees is None else format_address(sees)
        if result.saw != said:
            yield f"it says that {target} sees {said}, and that saw {result.saw}"


def _shares(explanation: Explanation, answers: Sequence[Endpoint]) -> Iterator[str]:
    """Yield endpoints that should have answered: with so many connections, a miss is almost impossible."""
    action = explanation.action
    if action is None or action.affinity_seconds is not None or action.spread.algorithm is Algorithm.SOURCE_HASH:
        return
    for endpoint, share in _pool(explanation).items():
        if endpoint not in answers and (1 - share) ** len(answers) < _UNLIKELY:
            yield f"it gives {_text(endpoint)} {float(share):.0%}, and of {len(answers)} connections it got none"


def _memories(
    explanation: Explanation, answers: Sequence[Endpoint], after: Explanation | None, age: float
) -> Iterator[str]:
    """Yield remembered clients that went elsewhere, and wrong memories afterwards."""
    before = explanation.walk.remembered if explanation.walk else None
    if explanation is not after and before is not None and before[2] > age + _MARGIN:
        strays = [each for each in answers if each != before[:2]]
        yield from (f"it remembers {_text(before[:2])}, and {_text(each)} answered" for each in strays)
    now = after.walk.remembered if after is not None and after.walk else None
    if answers and now is not None and now[:2] != answers[-1]:
        yield f"{_text(answers[-1])} answered, and it remembers {_text(now[:2])}"


def _pool(explanation: Explanation) -> Mapping[Endpoint, Fraction]:
    if explanation.walk is not None and explanation.walk.shares:
        return {target: share for target, share in explanation.walk.shares.items() if target is not None}
    return {(target.address, target.port): share for target, share in explanation.pool.items()}


def _endpoint(result: ProbeResult) -> Endpoint:
    assert result.answer is not None
    return parse_address(result.answer.local.address), result.answer.local.port


def _text(endpoint: Endpoint) -> str:
    return format_endpoint(*endpoint)
