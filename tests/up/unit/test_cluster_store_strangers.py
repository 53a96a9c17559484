"""etcd that is not this cluster's: nothing is acknowledged there, nothing is forgotten, and the servers say so."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import waiting
from tests.up.unit.etcd_here import Etcd, free_ports, members
from tests.up.unit.store_here import etcd_store, key, put, remove, settings, text_of
from tests.up.unit.up_here import Up, up

from vipwire_up.store.etcd.identity import MemberAnswer, choose_cluster
from vipwire_up.store.etcd.store import EtcdStore
from vipwire_up.store.record import CompactedError, ConflictError, ForeignStoreError

pytestmark = pytest.mark.slow
MAPS = "/api/v1/namespaces/default/configmaps"
PREFIX = "/vipwire"
PATIENCE = 60.0


@contextlib.asynccontextmanager
async def server(folder: Path, etcd: Etcd, name: str = "n0", place: str = PREFIX) -> AsyncIterator[Up]:
    async with up(folder, etcd=settings(etcd, place), node=name) as found:
        yield found


async def create(found: Up, name: str) -> int:
    code, answer = await found.ask("POST", MAPS, {"metadata": {"name": name}})
    assert code == 201 or answer["reason"] in {"ServerTimeout", "Timeout"}, answer
    return code


async def until(fact: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await fact():  # noqa: ASYNC110  # of another process nobody is told
            await asyncio.sleep(0.05)


async def ready(found: Up) -> bool:
    return bool((await found.ask("GET", "/readyz"))[0] == 200)


async def trouble(found: Up) -> str:
    """Return why the server is not ready."""
    code, text = await found.ask("GET", "/readyz?verbose")
    assert (code, "[-]part-etcd failed" in text) in {(200, False), (500, True)}, text
    return str(next((line for line in text.splitlines() if "part-etcd failed" in line), ""))


async def is_troubled(found: Up) -> None:
    await until(lambda: trouble(found))


async def holds(found: Up, name: str) -> None:
    """See that the last state is still read, and nothing is said to be gone."""
    assert (await found.ask("GET", f"{MAPS}/{name}?resourceVersion=0"))[0] == 200
    code, answer = await found.ask("GET", f"{MAPS}/{name}")
    assert (code, answer["reason"]) in {(500, "ServerTimeout"), (504, "Timeout")}


@contextlib.asynccontextmanager
async def filled(etcd: Etcd, tmp_path: Path) -> AsyncIterator[Up]:
    """Run a server with an object."""
    async with asyncio.timeout(240), server(tmp_path / "n0", etcd) as found:
        assert await create(found, "first") == 201
        yield found


async def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(work, *arguments)


def snapshot(etcd: Etcd, number: int) -> str:
    path = str(etcd.folder / "snapshot")
    etcd.ctl("snapshot", "save", path, number=number)
    return path


def restore(etcd: Etcd, number: int, path: str, *flags: str) -> None:
    """Make a stopped member's directory from a snapshot."""
    place = f"http://127.0.0.1:{etcd.ports[number][1]}"
    words = ["snapshot", "restore", path, "--data-dir", str(etcd.folder / f"m{number}"), "--name", f"m{number}"]
    etcd.ctl(*words, "--initial-advertise-peer-urls", place, *flags)


def put_right(etcd: Etcd) -> None:
    """Give the cluster its member 0 back, as etcd's guide says."""
    etcd.forget(0)
    lost = re.search(r"^(\w+), started, m0,", etcd.ctl("member", "list", number=1), re.MULTILINE)
    assert lost is not None
    etcd.ctl("member", "remove", lost[1], number=1)
    again = ("member", "add", "m0", f"--peer-urls=http://127.0.0.1:{etcd.ports[0][1]}")
    waiting.until(partial(etcd.succeeds, *again, number=1))  # etcd refuses for some seconds after the removal
    etcd.start(0, "--initial-cluster-state", "existing")
    etcd.wait()


@pytest.mark.parametrize("made", ["anew", "from a snapshot"])
async def test_a_member_that_became_another_cluster_is_told_and_gets_no_write(tmp_path: Path, made: str) -> None:
    with members(3) as etcd:
        async with filled(etcd, tmp_path) as found:
            path = await apart(snapshot, etcd, 0)
            assert await create(found, "second") == 201
            await apart(etcd.forget, 0)
            if made != "anew":
                restore(etcd, 0, path, *etcd.alone(0))
            etcd.start(0, *etcd.alone(0))
            await apart(etcd.wait)
            codes = [await create(found, f"during-{number}") for number in range(40)]
            await is_troubled(found)
            assert "127.0.0.1:" in await trouble(found)
            assert codes.count(201) >= 35  # the two others are asked
            assert (await found.ask("GET", f"{MAPS}/second"))[0] == 200
            await apart(put_right, etcd)
            await until(lambda: ready(found))
            for number, code in enumerate(codes):
                if code == 201:
                    assert (await found.ask("GET", f"{MAPS}/during-{number}"))[0] == 200


def grow(etcd: Etcd) -> None:
    """Add two members to one: the cluster keeps the number that the first has for itself."""
    for number in (1, 2):
        client, peer = free_ports(2)
        etcd.ports = [*etcd.ports, (client, peer)]
        peers = f"--peer-urls=http://127.0.0.1:{peer}"
        waiting.until(partial(etcd.succeeds, "member", "add", f"m{number}", peers))  # the one before has to start
        etcd.start(number, "--initial-cluster-state", "existing")
        etcd.wait(number)


async def test_a_member_restored_alone_with_the_number_of_the_cluster_gets_no_write(tmp_path: Path) -> None:
    with members(1) as etcd:
        grow(etcd)
        async with filled(etcd, tmp_path) as found:
            path = await apart(snapshot, etcd, 0)
            for number in range(5):
                assert await create(found, f"second-{number}") == 201
            await apart(etcd.forget, 0)
            restore(etcd, 0, path, *etcd.alone(0))
            etcd.start(0, *etcd.alone(0))
            await apart(etcd.wait)
            codes = [await create(found, f"during-{number}") for number in range(40)]
            await is_troubled(found)
            codes += [await create(found, f"later-{number}") for number in range(20)]
            assert codes.count(201) >= 55
            assert (await found.ask("GET", f"{MAPS}/second-4"))[0] == 200
            words = ("get", "--prefix", "--keys-only", f"{PREFIX}/objects/configmaps/")
            kept = await apart(lambda: etcd.ctl(*words, number=1))
            assert kept.count("/during-") + kept.count("/later-") >= codes.count(201)


def wiped(etcd: Etcd) -> None:
    etcd.forget(0)
    etcd.start(0)
    etcd.wait()


def emptied(etcd: Etcd) -> None:
    etcd.ctl("del", "--prefix", f"{PREFIX}/")


def overwritten(etcd: Etcd) -> None:
    etcd.ctl("put", f"{PREFIX}/cluster", "0123456789abcdef")


def another(etcd: Etcd) -> None:
    """Start another cluster of etcd at the address, in which another cluster has the prefix, and is far ahead."""
    etcd.forget(0)
    etcd.start(0, "--initial-cluster-token", "another")
    etcd.wait()
    etcd.ctl("put", f"{PREFIX}/cluster", "0123456789abcdef")
    for number in range(60):
        etcd.ctl("put", f"{PREFIX}/objects/configmaps/default/strange-{number}", "{}")


@pytest.mark.parametrize("happens", [wiped, emptied, overwritten, another], ids=lambda each: each.__name__)
async def test_a_prefix_that_is_not_ours_any_more_is_told_and_nothing_is_forgotten(
    tmp_path: Path, happens: Callable[[Etcd], None]
) -> None:
    with members(1) as etcd:
        async with filled(etcd, tmp_path) as found:
            path = await apart(snapshot, etcd, 0)
            async with found.session.get(f"{found.url}{MAPS}?watch=1&resourceVersion=0&timeoutSeconds=100") as watch:
                await apart(happens, etcd)
                assert await create(found, "refused") != 201
                await is_troubled(found)
                await holds(found, "first")
                before = etcd.ctl("get", "--prefix", f"{PREFIX}/")
                assert 201 not in await asyncio.gather(*(create(found, f"refused-{number}") for number in range(30)))
                await asyncio.sleep(5)  # Leases, controllers and first objects have tried to write
                assert etcd.ctl("get", "--prefix", f"{PREFIX}/") == before
                await holds(found, "first")
                await apart(etcd.forget, 0)
                restore(etcd, 0, path, *etcd.alone(0))  # the backup is restored
                etcd.start(0)
                await apart(etcd.wait)
                await until(lambda: ready(found))
                assert (await found.ask("GET", f"{MAPS}/first"))[0] == 200
                assert await create(found, "after") == 201
                told = (await watch.content.read(1 << 20)).decode()
                assert '"DELETED"' not in told
                assert "strange" not in told


async def test_a_whole_etcd_that_is_restored_under_another_name_is_taken(tmp_path: Path) -> None:
    def restored() -> None:
        path = snapshot(etcd, 0)
        every = ",".join(f"m{each}=http://127.0.0.1:{peer}" for each, (_, peer) in enumerate(etcd.ports))
        for number in range(3):
            etcd.forget(number)
        for number in range(3):
            restore(etcd, number, path, "--initial-cluster", every, "--initial-cluster-token", "restored")
            etcd.start(number)
        etcd.wait()

    with members(3) as etcd:
        async with filled(etcd, tmp_path) as found:
            await apart(restored)
            await until(lambda: ready(found))
            assert (await found.ask("GET", f"{MAPS}/first"))[0] == 200
            assert await create(found, "after") == 201


async def test_an_etcd_that_is_restored_under_its_servers_never_uses_a_revision_twice() -> None:
    async def grows(store: EtcdStore, name: str, count: int) -> list[int]:
        made = [(await store.write(put(f"{name}-{number}")))[0].revision for number in range(count)]
        await store.wait_for_newest()
        return made

    def is_void(store: EtcdStore, revision: int) -> bool:
        with contextlib.suppress(CompactedError):
            store.changes("things", revision)
            return False
        return True

    async def has_forgotten(store: EtcdStore, revisions: list[int]) -> bool:
        return all(is_void(store, each) for each in revisions)

    with members(1) as etcd:
        async with asyncio.timeout(120):
            async with etcd_store(settings(etcd, PREFIX)) as one, etcd_store(settings(etcd, PREFIX)) as two:
                for store in (one, two):
                    await store.transactions.claim_prefix(OURS)
                await grows(one, "kept", 5)
                path = await apart(snapshot, etcd, 0)
                known = [*await grows(one, "lost", 60), *await grows(two, "lost-too", 3)]
                etcd.forget(0)
                restore(etcd, 0, path, *etcd.alone(0))
                etcd.start(0)
                await apart(etcd.wait)
                for store in (one, two):
                    await until(partial(has_forgotten, store, known))
                    assert store.count("things") == 5
                assert min(await grows(one, "new", 90)) > max(known)
                async with etcd_store(settings(etcd, PREFIX)) as three:
                    for store in (one, two, three):
                        await store.wait_for_newest()
                        assert store.count("things") == 95
                        assert await has_forgotten(store, known)


async def test_no_request_writes_below_a_prefix_that_is_not_ours_any_more() -> None:
    with members(1) as etcd:
        async with asyncio.timeout(120):
            async with etcd_store(settings(etcd, PREFIX)) as store:
                assert await store.transactions.claim_prefix(OURS) == OURS
                (made,) = await store.write(put("one"))
                await store.compact(made.revision)
                await apart(emptied, etcd)
                for refused in (
                    put("two"),
                    put("two", lifetime=60),
                    put("one", "x", made.revision),
                    remove("one", 1),
                ):
                    with pytest.raises((ForeignStoreError, ConflictError)):
                        await store.write(refused)
                with pytest.raises(ForeignStoreError):
                    await store.wait_for_newest()
                with pytest.raises(ForeignStoreError):
                    await store.compact(store.revision)
                assert text_of(store.read(key("one"))) == ""
                assert "is empty" in store.trouble
                assert etcd.ctl("get", "--prefix", PREFIX) == ""


async def refuses_to_start(folder: Path, etcd: Etcd, place: str = PREFIX) -> str:
    with pytest.raises(BaseExceptionGroup) as refused:
        async with server(folder, etcd, place=place):
            pass
    return str(refused.value.exceptions[0])


async def test_a_start_at_an_empty_prefix_is_refused_where_there_was_a_cluster(tmp_path: Path) -> None:
    with members(1) as etcd:
        async with asyncio.timeout(240):
            async with server(tmp_path, etcd) as found:
                assert await create(found, "first") == 201
            said = await refuses_to_start(tmp_path, etcd, "/vipwrie")
            assert "/vipwrie" in said
            assert f"were at {PREFIX}:" in said
            await apart(wiped, etcd)
            assert f"remove etcd-cluster and server-id in {tmp_path}" in await refuses_to_start(tmp_path, etcd)
            (tmp_path / "etcd-cluster").unlink()  # as an earlier version, or a join, leaves it
            assert f"remove server-id in {tmp_path}" in await refuses_to_start(tmp_path, etcd)
            assert etcd.ctl("get", "--prefix", f"{PREFIX}/") == ""
            (tmp_path / "server-id").unlink()
            async with server(tmp_path, etcd) as found:
                assert (await found.ask("GET", f"{MAPS}/first"))[0] == 404


async def test_a_start_beside_a_member_of_another_cluster_asks_the_two_others(tmp_path: Path) -> None:
    with members(3) as etcd:
        async with asyncio.timeout(240):
            async with server(tmp_path, etcd) as found:
                assert await create(found, "first") == 201
            await apart(etcd.forget, 0)
            etcd.start(0, *etcd.alone(0))
            await apart(etcd.wait)
            async with server(tmp_path, etcd) as found:
                assert (await found.ask("GET", f"{MAPS}/first"))[0] == 200
                assert "127.0.0.1:" in await trouble(found)
                assert await create(found, "second") == 201
            assert etcd.ctl("get", "--prefix", f"{PREFIX}/") == ""


OURS, THEIRS = b"ours", b"theirs"


@pytest.mark.parametrize(
    ("answers", "servers", "known", "owner", "chosen"),
    [
        ([], 3, 1, OURS, 1),
        (
            [MemberAnswer(1, OURS), MemberAnswer(2, OURS), MemberAnswer(2, OURS)],
            3,
            1,
            OURS,
            1,
        ),  # ours answers: it has a majority
        ([MemberAnswer(2, OURS), MemberAnswer(2, OURS)], 3, 1, OURS, 2),  # restored
        ([MemberAnswer(2, OURS)], 3, 1, OURS, 1),  # restored alone, while the others do not answer
        ([MemberAnswer(2, b""), MemberAnswer(2, b"")], 3, 1, OURS, 1),  # made anew
        ([MemberAnswer(2, THEIRS)] * 3, 3, 1, OURS, 1),
        ([MemberAnswer(2, OURS)], 1, 1, OURS, 2),
        ([MemberAnswer(2, b"")], 1, 1, None, 2),  # at a start, whose it is is judged afterwards
        ([MemberAnswer(2, b"")], 3, 1, None, 1),
        ([MemberAnswer(2, b"")], 3, 0, None, 2),
        ([MemberAnswer(2, b""), MemberAnswer(1, OURS)], 3, 0, None, 0),
        ([MemberAnswer(2, b""), MemberAnswer(1, OURS), MemberAnswer(1, OURS)], 3, 0, None, 1),
    ],
)
def test_the_cluster_that_is_asked(
    answers: list[MemberAnswer], servers: int, known: int, owner: bytes | None, chosen: int
) -> None:
    assert choose_cluster(answers, servers, known, owner)[0] == chosen


@pytest.mark.parametrize(
    ("revisions", "owner", "reached"),
    [
        ([50, 51, 52], OURS, 51),
        ([10, 51, 52], OURS, 51),  # one was restored alone
        ([10, 11], OURS, 10),  # a backup was restored
        ([10, 11], THEIRS, 50),
        ([10], OURS, 50),
        ([90, 10, 11], OURS, 50),
        ([], OURS, 50),
    ],
)
def test_the_revision_that_no_answer_may_be_before(revisions: list[int], owner: bytes, reached: int) -> None:
    answers = [MemberAnswer(1, owner, each) for each in revisions]
    assert choose_cluster(answers, 3, 1, OURS, 50) == (1, reached)
