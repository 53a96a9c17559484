"""kill -9 at random points under load: whatever was acknowledged is there, and nothing is there in half."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.up.unit.cluster_here import running

from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore

pytestmark = pytest.mark.attack

ROUNDS = 8
WRITER = """
import asyncio, json, sys
from pathlib import Path
from vipwire_up.store.database import Database
from vipwire_up.store.record import Key, Write
from vipwire_up.store.embedded import EmbeddedStore

def write(store, pair, number):
    key = Key("things", "default", f"{pair}")
    held = store.head(key)
    encode = lambda revision: json.dumps({"n": number, "revision": revision, "padding": "x" * 500}).encode()
    return Write(key, encode, held.revision if held else 0)

async def work(store, name, start):
    number = start
    while True:
        number += 1
        # two objects that must always say the same
        await store.write(write(store, f"{name}-left", number), write(store, f"{name}-right", number))
        print(f"{name} {number}", flush=True)

async def main():
    store = EmbeddedStore(Database(Path(sys.argv[1])), keep=50)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store.run())
        for name in "abcdefgh":
            tasks.create_task(work(store, name, int(sys.argv[2])))

asyncio.run(main())
"""


@pytest.mark.slow
def test_what_was_acknowledged_survives_and_what_was_written_together_is_together(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311  # a test's own chance
    acknowledged: dict[str, int] = {}
    for number in range(ROUNDS):
        _run_and_kill(tmp_path, 100_000 * number, chance.randint(1, 400), acknowledged)
        found = asyncio.run(_read(tmp_path))
        for name, least in acknowledged.items():
            assert found[f"{name}-left"] == found[f"{name}-right"]
            assert found[f"{name}-left"] >= least
    assert len(acknowledged) == 8


def _run_and_kill(folder: Path, start: int, after: int, acknowledged: dict[str, int]) -> None:
    command = [sys.executable, "-c", WRITER, str(folder), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for count, line in enumerate(writer.stdout):
            _note(line, acknowledged)
            if count == after:
                writer.send_signal(signal.SIGKILL)
                break
        for line in writer.stdout:  # what it had said before it died
            if line.endswith("\n"):
                _note(line, acknowledged)
    assert writer.returncode == -signal.SIGKILL


def _note(line: str, acknowledged: dict[str, int]) -> None:
    name, number = line.split()
    acknowledged[name] = int(number)


async def _read(folder: Path) -> dict[str, int]:
    async with running(EmbeddedStore(Database(folder), keep=50)) as store:
        records = store.scan("things")
        objects = {record.key.name: json.loads(record.value) for record in records}
        assert all(objects[record.key.name]["revision"] == record.revision for record in records)
        return {name: value["n"] for name, value in objects.items()}
