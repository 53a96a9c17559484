"""Who writes the status: decisions over a Lease, and replicas against an API server with resourceVersions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from vipwire.kube.access.access import load_access
from vipwire.model.names import ObjectName
from vipwire_l7.ingress.run.election import SECONDS, Claim, Election, LeaseKeeper, claim_of, lease_of

LEASE = ObjectName("kube-system", "vipwire-ingress")


def test_a_claim_of_nobody_or_of_ourselves_may_be_taken() -> None:
    election = Election("me")
    assert election.may_claim(Claim(), 0.0)
    assert election.may_claim(Claim("me", "1"), 0.0)
    assert not election.may_claim(Claim("other", "1"), 0.0)


def test_a_holder_is_gone_when_we_have_seen_no_change_for_so_long_as_it_says() -> None:
    election = Election("me")
    assert not election.may_claim(Claim("other", "1", 15), 100.0)
    assert not election.may_claim(Claim("other", "2", 15), 114.0)
    assert not election.may_claim(Claim("other", "2", 15), 128.9)
    assert election.may_claim(Claim("other", "2", 15), 129.0)


@given(st.lists(st.floats(0, 40), max_size=8), st.floats(0, 40))
def test_two_never_lead_at_once(renewals: list[float], later: float) -> None:
    """The first renews now and then; the second looks as often as it can, and writes as soon as it may."""
    first, second, now = Election("first"), Election("second"), 0.0
    first.claimed(now)
    assert not second.may_claim(Claim("first", "0"), now)
    for number, pause in enumerate((*renewals, later), 1):
        now += pause
        if second.may_claim(Claim("first", str(number - 1)), now):
            second.claimed(now)
            assert not first.leading(now)
            return
        if number <= len(renewals):
            first.claimed(now)
            assert not second.may_claim(Claim("first", str(number)), now)
    assert not second.leading(now)


def test_what_is_written_is_read_and_odd_leases_are_nobodys() -> None:
    written = lease_of(LEASE, Claim("other", "7", 15, 2, "then"), "me", 0.5)
    assert written["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": int(SECONDS),
        "acquireTime": "1970-01-01T00:00:00.500000Z",
        "renewTime": "1970-01-01T00:00:00.500000Z",
        "leaseTransitions": 3,
    }
    again = claim_of(written)
    assert (again.holder, again.version, again.transitions) == ("me", "7", 3)
    assert claim_of(lease_of(LEASE, again, "me", 9.0)) == again
    assert claim_of({"spec": None}) == Claim()
    assert claim_of({"spec": {"leaseDurationSeconds": "x"}}) == Claim()


@asynccontextmanager
async def server(stored: dict[str, Any]) -> AsyncIterator[str]:
    """Keep one Lease as an API server does: a write with an old resourceVersion is a conflict."""

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(stored) if stored else web.Response(status=404)
        body = await request.json()
        if body["metadata"].get("resourceVersion") != stored.get("metadata", {}).get("resourceVersion"):
            return web.Response(status=409)
        version = int(body["metadata"].get("resourceVersion", 0)) + 1
        stored.update(body, metadata=body["metadata"] | {"resourceVersion": str(version)})
        return web.json_response(stored)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def test_one_of_three_replicas_leads_and_hands_over_when_it_ends() -> None:
    stored: dict[str, Any] = {}

    async def run() -> None:
        async with asyncio.timeout(60), server(stored) as url:
            keepers = [LeaseKeeper(load_access(None, url, environ={}), LEASE, f"r{number}") for number in range(3)]
            tasks = [asyncio.ensure_future(keeper.run()) for keeper in keepers]
            leader = await leader_of(keepers)
            assert stored["spec"]["holderIdentity"] == f"r{leader}"
            await end(tasks.pop(leader))
            assert stored["spec"]["holderIdentity"] == ""
            keepers.pop(leader)
            assert await leader_of(keepers) in (0, 1)
            assert stored["spec"]["leaseTransitions"] == 2
            for task in tasks:
                await end(task)

    asyncio.run(run())


async def leader_of(keepers: list[LeaseKeeper]) -> int:
    """Wait until one leads; tell which."""
    while not any(keeper.leading() for keeper in keepers):  # noqa: ASYNC110  # as the status writer asks
        await asyncio.sleep(0.01)
    (leader,) = (number for number, keeper in enumerate(keepers) if keeper.leading())
    return leader


async def end(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
