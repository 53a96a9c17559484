"""What the programs of this folder share: their namespace, errors that must come, the pause for a restart."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

NAMESPACE = sys.argv[1] if len(sys.argv) > 1 else ""
PATIENCE = 60.0


def config_map(name: str, **data: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": NAMESPACE, "labels": {"app": "test"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def service(name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": NAMESPACE}
    spec = {"selector": {"app": "test"}, "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def route(name: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": meta, "spec": spec}


@contextlib.contextmanager
def refused(error: type[Exception], code: int, code_of: Callable[[Any], Any]) -> Iterator[None]:
    """Expect an error of the client with this status code."""
    found = None
    try:
        yield
    except error as raised:
        found = raised
    assert found is not None, f"no {error.__name__} with {code}"
    assert code_of(found) == code, found


def wait_for_restart() -> None:
    """Say that the watch is open; return when the API server has started again."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    assert sys.stdin.readline() == "restarted\n"


def until(is_so: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := is_so()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found
