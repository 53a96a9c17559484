"""Instructions that HAProxy takes for a request with vipwire's configuration of one HTTPRoute, beside one by hand.

`python -m bench.gateway_instructions` (needs haproxy and valgrind; loopback only). Unlike the times of bench.gateway
they do not depend on who else is here; `bench.ingress_instructions` says what is counted.
"""

import json
import re
import tempfile
from pathlib import Path

from bench import ingress_by_hand
from bench.gateway import haproxy, put_routes
from bench.ingress import ANSWERING, HOST
from bench.ingress_instructions import counted
from tests.fakes.ports import free_port
from tests.gateway.site import gateways, list_all


def ours(folder: Path, pod: int, port: int) -> str:
    """Have vipwire write a configuration for one route, at `port`."""
    with gateways(folder) as here:
        put_routes(here, (HOST,), pod, "/app")
        list_all(here)
        here.settle()
        text = (here.haproxy.folder / "haproxy.cfg").read_text()
        # The hosts in maps end with the Gateway's port, so that it is not another one here.
        text = re.sub(r" *stats socket .*\n", "", text)
        return re.sub(r"bind '?127\.0\.0\.1:\d+'?", f"bind 127.0.0.1:{port}", text)


def main() -> None:
    pod, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)):
            texts = {"by hand": ingress_by_hand.for_one_host(f"127.0.0.1:{port}", HOST, pod)}
            texts["vipwire"] = ours(folder, pod, port)
            found = {title: dict(counted(folder, text, port)) for title, text in texts.items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
