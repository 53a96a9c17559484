"""The handlers of the operator; `kopf run` loads them."""

from typing import Any

import kopf
import pykube

LABELS = {"app": "test"}


def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = True
    settings.watching.server_timeout = 600


def created(body: Any, patch: Any, **_: Any) -> None:
    patch.setdefault("data", {})["created"] = body.get("data", {}).get("wanted", "")


def updated(body: Any, patch: Any, **_: Any) -> None:
    patch.setdefault("data", {})["updated"] = body["data"]["wanted"]


def deleted(namespace: str, name: str, **_: Any) -> None:
    api = pykube.HTTPClient(pykube.KubeConfig.from_env())
    meta = {"name": "log", "namespace": namespace}
    log = pykube.ConfigMap(api, {"metadata": meta, "data": {name: "deleted"}})
    if not log.exists():
        log.create()


def tick(body: Any, patch: Any, **_: Any) -> None:
    patch.setdefault("data", {})["ticks"] = str(int(body.get("data", {}).get("ticks", 0)) + 1)


kopf.on.startup()(configure)
kopf.on.create("configmaps", labels=LABELS)(created)
kopf.on.update("configmaps", labels=LABELS, field="data.wanted")(updated)
kopf.on.delete("configmaps", labels=LABELS)(deleted)
kopf.timer("configmaps", labels=LABELS, interval=0.5)(tick)
