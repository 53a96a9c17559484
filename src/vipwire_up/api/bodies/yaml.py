"""Bodies in YAML: one document, of a size that the event loop can look at. Pure."""

from typing import Any

from vipwire.config.yaml_values import read_documents
from vipwire.errors import DecodeError
from vipwire_up.api.bodies.size import MOST_VALUES, check_size
from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.object import parse


def read_yaml(body: bytes) -> Any:
    """Read YAML, of which JSON is a part. Raise ApiError 400."""
    return read_yaml_strictly(body)[0]


def read_yaml_strictly(body: bytes) -> tuple[Any, list[str]]:
    """Read YAML; give it with the paths of fields that stand twice. Raise ApiError 400."""
    if body.lstrip()[:1] == b"{":
        return check_size(parse(body)), []
    repeated: list[str] = []
    try:
        documents = read_documents(body, 2 * MOST_VALUES, repeated)  # keys are counted, too
    except DecodeError as error:
        raise bad_request(f"error decoding YAML: {error}") from None
    if len(documents) > 1:
        raise bad_request("error decoding YAML: expected a single document in the stream")
    return check_size(documents[0] if documents else None), list(dict.fromkeys(repeated))
