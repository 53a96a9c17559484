"""What every store does, whichever engine is below: revisions, transactions, watches, history."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.up.unit.etcd_here import Etcd, members
from tests.up.unit.store_here import Engine, key, prefix, put, remove, text_of

from vipwire_up.store.record import (
    Check,
    CompactedError,
    ConflictError,
    FutureRevisionError,
    RecordChange,
    Step,
)


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with members(3) as running:
        yield running


@pytest.fixture(params=["embedded", pytest.param("etcd", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    etcd = request.getfixturevalue("etcd") if request.param == "etcd" else None
    return Engine(tmp_path, etcd, prefix())


async def test_what_is_written_is_read_with_its_revision_in_it(engine: Engine) -> None:
    async with engine.open() as store:
        (first,) = await store.write(put("b", "one"))
        assert (text_of(first), first.revision) == ("one", store.revision)
        second, third = await store.write(put("a", "two"), put("c", "three"))
        assert first.revision < second.revision <= third.revision == store.revision
        assert [text_of(each) for each in store.scan("things")] == ["two", "one", "three"]
        assert store.read(key("b")) == first
        assert store.count("things") == 3
        (changed,) = await store.write(put("b", "new", first.revision))
        assert store.read(key("b")) == changed == store.head(key("b"))


@pytest.mark.parametrize("kind", ["there already", "of another revision", "not there", "a check that fails"])
async def test_a_transaction_from_another_state_is_refused_whole(engine: Engine, kind: str) -> None:
    async with engine.open() as store:
        (there,) = await store.write(put("a", "one"))
        steps: dict[str, Step] = {
            "there already": put("a"),
            "of another revision": put("a", "two", there.revision + 7),
            "not there": remove("b", 1),
            "a check that fails": Check(key("a"), 0),
        }
        wrong = steps[kind]
        with pytest.raises(ConflictError) as refused:
            await store.write(put("c"), wrong)
        assert refused.value.key == wrong.key
        assert refused.value.actual == (0 if kind == "not there" else there.revision)
        assert [text_of(each) for each in store.scan("things")] == ["one"]
        assert store.head(key("c")) is None
        await store.write(put("c"), Check(key("a"), there.revision), Check(key("x"), 0))
        assert store.count("things") == 2


async def test_a_restart_keeps_the_history_that_is_left(engine: Engine) -> None:
    async with engine.open() as store:
        await store.write(put("gone", "before"))
        (first,) = await store.write(put("a", "one"))
        await store.compact(first.revision)
        (second,) = await store.write(put("a", "two", first.revision))
    async with engine.open() as again:
        assert [change.revision for change in again.changes("things", first.revision)] == [second.revision]
        assert [text_of(each) for each in again.scan("things", at=first.revision)] == ["one", "before"]
        with pytest.raises(CompactedError):
            again.changes("things", first.revision - 1)


async def test_what_is_under_way_is_in_the_head_and_not_visible(engine: Engine) -> None:
    async with engine.open() as store:
        waiting = store.submit([put("a", "one")])
        assert store.read(key("a")) is None
        assert store.head(key("a")) is not None
        with pytest.raises(ConflictError):
            await store.submit([put("a", "two")])
        (made,) = await waiting
        await store.wait_until_decided(key("a"))
        assert store.head(key("a")) == made == store.read(key("a"))


async def test_everything_is_there_after_a_restart_with_its_history(engine: Engine) -> None:
    async with engine.open() as store:
        first, second = await store.write(put("a", "one"), put("b", "two"))
        (new,) = await store.write(put("a", "new", first.revision))
        await store.write(remove("b", second.revision))
        last = store.revision
    async with engine.open() as again:
        assert again.revision >= last
        assert [text_of(each) for each in again.scan("things")] == ["new"]
        assert [text_of(each) for each in again.scan("things", at=second.revision)] == ["one", "two"]
        changes = again.changes("things", second.revision)
        assert [(change.revision, change.deleted) for change in changes] == [(new.revision, False), (last, True)]
        assert [change.previous and text_of(change.previous) for change in changes] == ["one", "two"]


async def test_old_states_can_be_listed_until_they_are_compacted(engine: Engine) -> None:
    async with engine.open() as store:
        seen = [0]
        for number in range(5):
            (made,) = await store.write(put("a", str(number), seen[-1]))
            seen.append(made.revision)
        assert [text_of(each) for each in store.scan("things", at=seen[3])] == ["2"]
        with pytest.raises(FutureRevisionError):
            store.scan("things", at=seen[-1] + 1)
        with pytest.raises(FutureRevisionError):
            store.changes("things", seen[-1] + 1)
        await store.compact(seen[3])
        assert [text_of(each) for each in store.scan("things", at=seen[3])] == ["2"]
        with pytest.raises(CompactedError) as gone:
            store.scan("things", at=seen[2])
        assert (gone.value.revision, gone.value.floor) == (seen[2], seen[3])
        with pytest.raises(CompactedError):
            store.changes("things", seen[2])


async def test_a_start_after_a_compaction_has_the_state_and_no_older_history(engine: Engine) -> None:
    async with engine.open() as store:
        (first,) = await store.write(put("a", "one"))
        (second,) = await store.write(put("a", "two", first.revision))
        await store.compact(second.revision)
    async with engine.open() as again:
        assert [text_of(each) for each in again.scan("things")] == ["two"]
        assert again.floor >= second.revision
        (third,) = await again.write(put("a", "three", second.revision))
        assert third.revision > second.revision


async def test_history_is_bounded(engine: Engine) -> None:
    async with engine.open(keep=10) as store:
        revision = 0
        for number in range(30):
            (made,) = await store.write(put("a", str(number), revision))
            revision = made.revision
        assert store.floor >= revision - 25
        assert len(store.changes("things", store.floor)) <= 20


async def test_a_watch_gives_what_was_and_what_comes(engine: Engine) -> None:
    async with engine.open() as store:
        (first,) = await store.write(put("a", "one"))
        (second,) = await store.write(put("b", "two"))
        seen: list[RecordChange] = []

        async def follow() -> None:
            async for batch in store.watch("things", first.revision):
                seen.extend(batch)
                if batch[-1].deleted:
                    return

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            await store.write(put("x", resource="others"))
            await store.write(remove("a", first.revision))
        assert [(change.record.key.name, change.deleted) for change in seen] == [("b", False), ("a", True)]
        assert [change.revision for change in seen] == [second.revision, store.revision]
        assert seen[1].previous == first
        assert seen[1].record.revision == store.revision > second.revision


async def test_many_writes_at_once_are_all_made_and_each_is_told_once(engine: Engine) -> None:
    async with engine.open() as store:
        since = store.revision
        await asyncio.gather(*(store.write(put(f"n{number}", "x" * number)) for number in range(300)))
        assert store.count("things") == 300
        changes = store.changes("things", since)
        assert len(changes) == 300
        assert sorted(change.revision for change in changes) == [change.revision for change in changes]
        await store.wait_for_newest()


async def test_of_writers_of_one_key_who_come_at_once_one_wins(engine: Engine) -> None:
    async with engine.open() as store:

        async def attempt(number: int) -> bool:
            try:
                await store.write(put("one", str(number)), put(f"other-{number}"))
            except ConflictError:
                return False
            return True

        won = await asyncio.gather(*map(attempt, range(20)))
        assert won.count(True) == 1
        assert text_of(store.read(key("one"))) == str(won.index(True))
        assert [each.key.name for each in store.scan("things")] == ["one", f"other-{won.index(True)}"]


async def test_a_store_says_whether_it_lets_go_what_has_a_lifetime(engine: Engine) -> None:
    """One that does not leaves it to garbage collection."""
    async with engine.open() as store:
        (made,) = await store.write(put("brief", "for a moment", lifetime=1))
        assert store.read(key("brief")) == made
        if store.expires:
            while store.read(key("brief")) is not None:
                await store.wait_for_change("things")
            (change,) = store.changes("things", made.revision)
            assert change.deleted
            assert change.revision > made.revision
