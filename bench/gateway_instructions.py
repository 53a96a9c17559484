"""Instructions that HAProxy takes for a request with vipwire's configuration of HTTPRoutes, beside one by hand.

`python -m bench.gateway_instructions` (needs haproxy, wrk and valgrind; loopback only) counts with one host and with
a thousand: of requests that follow each other on one connection, and of 32 connections at once. Unlike the times of
bench.gateway the first do not depend on who else is here; `bench.ingress_instructions` says what is counted. One more
configuration by hand takes `Upgrade: h2c` out of requests, as vipwire's does: without that a client's HTTP/2 in
HTTP/1.1 passes by all rules of HAProxy.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.gateway import haproxy, put_routes
from bench.ingress import ANSWERING, CASES, HOST, Case, by_hand, load
from bench.ingress_instructions import Asking, connected, counted, instructions
from tests.fakes.ports import free_port
from tests.l7.gateway.site import gateways, list_all

ONE, THOUSAND = (Case(each.name, (*each.hosts[1:], HOST)) for each in CASES if not each.sticky and not each.tls)
_NO_H2C = "    http-request del-header Upgrade if { req.hdr(upgrade) -m sub -i h2c }\n"


def ours(case: Case, folder: Path, pod: int, port: int) -> str:
    """Have vipwire write a configuration for a route for each host, at `port`."""
    with gateways(folder) as here:
        put_routes(here, case.hosts, pod, "/app")
        list_all(here)
        here.settle()
        text = (here.haproxy.folder / "haproxy.cfg").read_text()
        # The hosts in maps end with the Gateway's port, so that it is not another one here.
        text = re.sub(r" *stats socket .*\n", "", text)
        return re.sub(r"bind '?127\.0\.0\.1:\d+'?", f"bind 127.0.0.1:{port}", text)


def at_once(case: Case, folder: Path) -> Asking:
    """Ask for all hosts in turn, on the connections of bench.ingress."""

    def asking(port: int) -> Iterator[int]:
        connected(port).close()
        for seconds in (3, 10):
            yield load(case, folder, port, seconds)[0]

    return asking


def main() -> None:
    pod, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)):
            for case in (ONE, THOUSAND):
                own = folder / f"{len(case.hosts)}"
                own.mkdir()
                hand = by_hand(case, own, port, pod)
                texts = {"by hand": hand, "vipwire": ours(case, own, pod, port)}
                texts["by hand, no h2c"] = hand.replace("    use_backend", f"{_NO_H2C}    use_backend")
                found = {
                    title: {
                        **dict(counted(own, text, port)),
                        "at once": instructions(own, text, port, at_once(case, own)),
                    }
                    for title, text in texts.items()
                }
                print(json.dumps({case.name: found}, indent=2), flush=True)


if __name__ == "__main__":
    main()
