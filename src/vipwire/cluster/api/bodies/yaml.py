"""Bodies in YAML: read as Kubernetes does, and refused where their aliases would make much of little.

An alias stands for all of its anchor; aliases of aliases double a document with each line (CVE-2019-11253).
"""

from typing import Any, Final

import yaml

from vipwire.cluster.api.errors import bad_request
from vipwire.cluster.api.object import encode, parse

MOST_NODES: Final = 1_000_000
"""Values of a document with its aliases written out; a body of 3 MiB without any has fewer."""


def read_yaml(body: bytes) -> Any:
    """Read YAML, of which JSON is a part; what it has beyond, such as dates, becomes text. Raise ApiError 400."""
    if body.lstrip()[:1] == b"{":
        return parse(body)
    try:
        if _size(yaml.compose(body, _Loader), {}) > MOST_NODES:
            raise bad_request("error decoding YAML: the document contains excessive aliasing")
        return parse(encode(yaml.load(body, Loader=_Loader)))  # noqa: S506  # a SafeLoader without dates
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise bad_request(f"error decoding YAML: {error}") from None


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Count the values of a node, with what its aliases stand for. Raise RecursionError for one that holds itself."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


class _Loader(yaml.SafeLoader):
    """YAML without dates: on the wire, a time is a text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
