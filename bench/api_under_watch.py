"""An API server with TLS that reports its costs: `python -m bench.api_under_watch FOLDER`, for `bench.api_costs`.

Prints its port, then for each line on its input: the longest round of its event loop since the last line, in ms of
CPU; its peak memory in MB; its CPU seconds.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from vipwire.process_lifecycle.cyclic_garbage import collect_rarely
from vipwire.process_lifecycle.file_limits import raise_limit
from vipwire_up.api.change import Options
from vipwire_up.api.damaged_records import is_readable
from vipwire_up.api.kinds.small_kinds import CONFIG_MAPS, NAMESPACES
from vipwire_up.api.registry import Registry
from vipwire_up.api.server import ApiServer
from vipwire_up.api.serving.limits import Bounds
from vipwire_up.credentials.ca import Authority
from vipwire_up.credentials.identity import Access, load_tokens, write_kubeconfigs
from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore

OBJECTS: Final = 36
OBJECT_BYTES: Final = 500_000
_BEAT: Final = 0.002


class Watch:
    """The process's memory and its event loop's longest round, in CPU time, which other load does not lengthen."""

    def __init__(self) -> None:
        self.longest = self.most = 0.0
        self._cpu = time.process_time()

    async def run(self) -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(_BEAT)
            self.longest = max(self.longest, time.thread_time() - begun)
            self.most = max(self.most, resident())

    def told(self) -> dict[str, float]:
        """Return the costs and reset them."""
        cpu, self._cpu = self._cpu, time.process_time()
        told = {"ms": self.longest * 1000, "mb": self.most, "now_mb": resident(), "cpu": self._cpu - cpu}
        self.longest = self.most = 0.0
        return told


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def serve(folder: Path) -> None:
    store = EmbeddedStore(Database(folder), is_readable)
    registry = Registry(store, lambda: datetime.now(UTC))  # noqa: TID251  # a server's clock
    authority = Authority(folder / "pki", datetime.now(UTC))  # noqa: TID251
    tls = authority.build_server_context(authority.issue_server_certificate(["127.0.0.1", "localhost"]))
    access = Access(load_tokens(folder / "tokens.csv"))
    server = ApiServer(registry, access.identify, bounds=Bounds().lowered_to_files(raise_limit()))
    watch, loop = Watch(), asyncio.get_running_loop()
    tasks = [loop.create_task(store.run()), loop.create_task(watch.run())]
    await asyncio.sleep(0)
    await registry.create(NAMESPACES, "", {"metadata": {"name": "default"}}, Options())
    for number in range(OBJECTS):
        body = {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * OBJECT_BYTES}}
        await registry.create(CONFIG_MAPS, "default", body, Options())
    serving, port = await server.listen("127.0.0.1", 0, tls)
    write_kubeconfigs(folder, authority, f"https://127.0.0.1:{port}")
    print(port, flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(watch.told()), flush=True)
    await serving.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    collect_rarely()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Path(sys.argv[1])))
