"""Instructions of HAProxy for a request with vipwire's configuration of HTTPRoutes, beside one by hand.

`python -m bench.gateway_instructions` (needs haproxy, wrk and valgrind; loopback only) counts with one host and with
a thousand: requests one after the other on one connection, and on 32 concurrent connections. Unlike the times of
bench.gateway, the former do not depend on other load; `bench.ingress_instructions` says what is counted.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.gateway import put_routes
from bench.ingress import ANSWERING, CASES, HOST, Case, by_hand, haproxy, load
from bench.ingress_instructions import Asking, connected, instructions
from tests.fakes.ports import free_port
from tests.l7.gateway.site import gateways, list_all

ONE, THOUSAND = (Case(each.name, (*each.hosts[1:], HOST)) for each in CASES if not each.sticky and not each.tls)


def ours(case: Case, folder: Path, pod: int, port: int) -> str:
    """Let vipwire write a configuration with a route for each host, at `port`."""
    with gateways(folder) as here:
        put_routes(here, case.hosts, pod, "/app")
        list_all(here)
        here.settle()
        text = (here.haproxy.folder / "haproxy.cfg").read_text()
        # Hosts in maps end with the Gateway's port, so the port must be the same.
        text = re.sub(r" *stats socket .*\n", "", text)
        return re.sub(r"bind '?127\.0\.0\.1:\d+'?", f"bind 127.0.0.1:{port}", text)


def at_once(case: Case, folder: Path) -> Asking:
    """Request all hosts in turn, on the connections of bench.ingress."""

    def asking(port: int) -> Iterator[int]:
        connected(port).close()
        for seconds in (1, 4):
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
                texts = {"by hand": by_hand(case, own, port, pod), "vipwire": ours(case, own, pod, port)}
                found = {
                    how: {title: instructions(own, text, port, asking) for title, text in texts.items()}
                    for how, asking in (("one after the other", None), ("at once", at_once(case, own)))
                }
                ratios = {how: round(each["vipwire"] / each["by hand"], 3) for how, each in found.items()}
                print(json.dumps({case.name: found, "ratios": ratios}, indent=2), flush=True)


if __name__ == "__main__":
    main()
