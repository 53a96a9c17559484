"""The tests' fake API server with a whole cluster, which changes endpoints when it is told to on its input.

python -m bench.apiserver SERVICES ENDPOINTS        prints its URL, then for each line `COUNT FIRST` read: changes
as many endpoints, prints when it began (CLOCK_MONOTONIC)
"""

import asyncio
import sys
import time

from bench.cluster import node_object, with_new_endpoint
from tests.fakes.apiserver import FakeApiServer, generate
from tests.fakes.apistore import ApiStore


async def serve(services: int, endpoints: int) -> None:
    store = ApiStore()
    generate(store, services, endpoints)
    store.put("nodes", node_object())
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with FakeApiServer(store) as server:
        print(server.url, flush=True)
        while line := await reader.readline():
            count, first = map(int, line.split())
            changed = [with_new_endpoint(number, endpoints, first + number) for number in range(count)]
            print(time.monotonic(), flush=True)
            for value in changed:
                store.put("endpointslices", value)


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
