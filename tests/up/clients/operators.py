"""An operator on kopf: finalizers, timers, a change while it is away, a restart. Its objects are ConfigMaps."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pykube
from tests.up.clients.common import NAMESPACE, config_map, until, wait_for_restart

OPERATOR = Path(__file__).with_name("operator_handlers.py")


@contextlib.contextmanager
def running() -> Iterator[None]:
    command = [sys.executable, "-m", "kopf", "run", "--standalone", "--quiet", "-n", NAMESPACE, str(OPERATOR)]
    with subprocess.Popen(command, env=os.environ) as process:
        yield
        process.terminate()
        assert process.wait(60) in (0, -15), process.returncode


def main() -> None:
    api = pykube.HTTPClient(pykube.KubeConfig.from_env())
    pykube.Namespace(api, {"metadata": {"name": NAMESPACE}}).create()
    maps = pykube.ConfigMap.objects(api).filter(namespace=NAMESPACE)

    def data(name: str) -> dict[str, Any]:
        found = maps.get_or_none(name=name)
        return found.obj.get("data", {}) if found else {}

    with running():
        pykube.ConfigMap(api, config_map("one", wanted="1")).create()
        until(lambda: data("one").get("created") == "1", "created")
        until(lambda: int(data("one").get("ticks", 0)) > 1, "the timer")
        one = maps.get(name="one")
        assert one.metadata["finalizers"]
        one.patch({"data": {"wanted": "2"}})
        until(lambda: data("one").get("updated") == "2", "updated")
        wait_for_restart()
        one.patch({"data": {"wanted": "3"}})
        until(lambda: data("one").get("updated") == "3", "updated after the restart")
    one.patch({"data": {"wanted": "4"}})
    pykube.ConfigMap(api, config_map("gone")).create()
    one.delete()
    assert one.exists()  # its finalizer waits for the operator
    with running():
        until(lambda: not one.exists(), "deleted")
        until(lambda: data("log").get("one") == "deleted", "the handler of the deletion")
        until(lambda: "created" in data("gone"), "created while it was away")


main()
