"""A kubeconfig with one context, as a document and as a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SERVER = "http://192.0.2.1:8080"
"""An address at which nothing answers."""


def kubeconfig(cluster: Any, user: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }


def write_kubeconfig(
    path: Path, server: str = SERVER, user: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = kubeconfig({"server": server, **(cluster or {})}, dict(user or {}))
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path
