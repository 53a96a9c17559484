"""Prints the messages of the Gateway API's rules between fields, by kind: `python -m scripts.gateway_rules FILE…`.

FILE is a custom resource definition of a release of kubernetes-sigs/gateway-api, such as experimental-install.yaml.
tests/up/unit/gateway_rules.yaml is the output; the test beside it compares the API server with it.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml


def rules(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the messages of each kind's CEL rules, of the newest served version."""
    found: dict[str, list[str]] = {}
    for each in (document for text in texts for document in yaml.safe_load_all(text)):
        if each and each["kind"] == "CustomResourceDefinition":
            served = [version for version in each["spec"]["versions"] if version["served"]]
            schema = served[0]["schema"]["openAPIV3Schema"]  # the definitions begin with the newest
            found[each["spec"]["names"]["kind"]] = sorted(set(_messages(schema)))
    return found


def _messages(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations") or ())
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _messages(part)


if __name__ == "__main__":
    print(yaml.safe_dump(rules(Path(each).read_text() for each in sys.argv[1:]), width=1000), end="")
