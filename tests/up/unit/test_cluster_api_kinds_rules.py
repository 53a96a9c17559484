"""What the API server fills in, refuses and warns of, kind by kind, as tables: tests/up/unit/api_kinds_rules/.

kind Service in 10.96.0.0/24       a section; `in` names the ranges of ClusterIPs. The next line is a whole object
SENT => STORED                     SENT, merged into the object, is stored as STORED says; null: not there
SENT -> FIELD: WORDS; FIELD: …     it is refused for just these fields; words after those given may follow
SENT ~> WARNING; WARNING           it is stored with just these warnings
SENT >> PATCH …                    the same of a merge patch to what SENT has made
"""

import asyncio
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.up.unit.cluster_here import Here, cluster
from tests.up.unit.controllers_here import clock

from vipwire.kube.errors import ApiError
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.kinds.service_cidr import SERVICE_CIDRS
from vipwire_up.api.objects.object import decode_record
from vipwire_up.api.objects.quantity import read_quantity, write_quantity
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.patches.json_patch import apply_merge_patch
from vipwire_up.controllers.hooks import Ranges, build_hooks

TABLES: Final = Path(__file__).parent / "api_kinds_rules"
KINDS: Final = {resource.kind: resource for resource in RESOURCES}
REASONS: Final = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Unsupported value": "FieldValueNotSupported",
    "Duplicate value": "FieldValueDuplicate",
    "Not found": "FieldValueNotFound",
    "Forbidden": "FieldValueForbidden",
    "Too many": "FieldValueTooMany",
}
_SECTION: Final = re.compile(r"kind (\w+)(?: in (.+))?")
_ROW: Final = re.compile(r"(\{.*?\})(?: >> (\{.*?\}))? (=>|->|~>) ?(.*)")


@dataclass(frozen=True)
class Row:
    kind: str
    ranges: tuple[str, ...]
    base: Object
    text: str
    sent: Object
    patch: Object | None
    sign: str
    wanted: str

    @property
    def resource(self) -> Resource:
        return KINDS[self.kind]


@dataclass(frozen=True)
class Outcome:
    """What became of a row: the object, or what was wrong with it; and what was warned of."""

    stored: Object
    causes: tuple[Mapping[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def rows() -> Iterator[Row]:
    for path in sorted(TABLES.glob("*.txt")):
        kind, ranges, base = "", ("10.96.0.0/24",), None
        for line in path.read_text().splitlines():
            if section := _SECTION.fullmatch(line):
                kind, ranges, base = section[1], tuple((section[2] or "10.96.0.0/24").split()), None
            elif line.startswith("{") and base is None:
                base = yaml.safe_load(line)
            elif line.startswith("{"):
                match = _ROW.fullmatch(line)
                assert match, line
                patch = yaml.safe_load(match[2]) if match[2] else None
                yield Row(kind, ranges, base or {}, line, yaml.safe_load(match[1]), patch, match[3], match[4])


ROWS: Final = tuple(rows())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What becomes of all rows, in one cluster for each set of ranges."""
    found: dict[str, Outcome] = {}
    for ranges, group in itertools.groupby(ROWS, key=lambda row: row.ranges):
        folder = tmp_path_factory.mktemp("cluster")
        found |= asyncio.run(_outcomes(folder, ranges, tuple(group)))
    return found


async def _outcomes(folder: Path, ranges: tuple[str, ...], group: tuple[Row, ...]) -> dict[str, Outcome]:
    async with cluster(folder, make_hooks=lambda store: build_hooks(store, clock, Ranges())) as here:
        body = {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": list(ranges)}}
        await here.registry.create(SERVICE_CIDRS, "", body, Options())
        return {row.text: await _outcome(here, row) for row in group}


async def _outcome(here: Here, row: Row) -> Outcome:
    options = Options("test", dry_run=True)
    registry, namespace = here.registry, "default" if row.resource.namespaced else ""
    body = apply_merge_patch(row.base, row.sent)
    name = body["metadata"]["name"]
    try:
        if row.patch is None:
            done = await registry.create(row.resource, namespace, body, options)
        else:
            await registry.create(row.resource, namespace, body, Options("test"))
            try:
                done = await registry.change(
                    row.resource, namespace, name, lambda value: apply_merge_patch(value, row.patch), options
                )
            finally:
                await registry.delete(row.resource, namespace, name)
    except ApiError as error:
        return Outcome({}, tuple(error.details.get("causes", ({"field": "", "message": error.message},))))
    return Outcome(decode_record(done.record), (), done.warnings)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.kind}: {row.text}"[:120] for row in ROWS])
def test_an_object_is_taken_as_by_a_cluster(row: Row, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[row.text]
    if row.sign == "->":
        texts = [f"{cause['field']}: {cause['message']}" for cause in outcome.causes]
        wanted = re.split(r"; (?=[a-z]+\S*: )", row.wanted)
        assert len(texts) == len(wanted), texts
        for cause, text, words in zip(outcome.causes, texts, wanted, strict=True):
            assert text.startswith(words), texts
            assert cause["reason"] == REASONS[cause["message"].partition(":")[0]]
        return
    assert outcome.causes == ()
    if row.sign == "~>":
        assert "; ".join(outcome.warnings) == row.wanted
    else:
        assert _within(yaml.safe_load(row.wanted), outcome.stored), outcome.stored


def _within(wanted: Any, found: Any) -> bool:
    """Report whether an object has all that is wanted; null stands for what is not there."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_within(part, found.get(key)) for key, part in wanted.items())
    return bool(wanted == found)


def test_each_kind_has_a_table() -> None:
    assert {row.kind for row in ROWS} == KINDS.keys()


def test_each_row_is_another_one() -> None:
    assert len({row.text for row in ROWS}) == len(ROWS)


async def test_what_is_stored_is_stored_the_same_again(outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    """Defaults are filled in once: an object that was accepted is accepted, and comes out as it went in."""
    async with cluster(tmp_path) as here:
        for row in ROWS:
            if stored := outcomes[row.text].stored:
                assert await _again(here, row.resource, stored) == stored, row.text


async def _again(here: Here, resource: Resource, stored: Object) -> Object:
    """Create what has been stored; what is the server's is taken over."""
    meta = {key: part for key, part in stored["metadata"].items() if key not in ("uid", "resourceVersion")}
    body = json.loads(json.dumps(stored | {"metadata": meta}))
    namespace = "default" if resource.namespaced else ""
    done = await here.registry.create(resource, namespace, body, Options("test", dry_run=True))
    made = decode_record(done.record)
    kept = {key: part for key, part in stored["metadata"].items() if key in made["metadata"] or key == "uid"}
    assert made.keys() >= stored.keys() - {"status"}
    server = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")
    again = {key: part for key, part in made["metadata"].items() if key not in server}
    own = {key: kept[key] for key in server if key in stored["metadata"] and key in kept}
    rest = {key: stored["metadata"][key] for key in server if key in stored["metadata"]}
    status = {"status": stored["status"]} if "status" in stored else {}
    return made | {"metadata": again | own | rest} | status


NUMBERS = st.decimals(min_value=0, max_value=10**12, places=4, allow_nan=False).map(lambda number: f"{number:f}")
SUFFIXES = st.sampled_from(["", "m", "u", "n", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "E2", "e-2"])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.builds("{}{}".format, NUMBERS, SUFFIXES))
def test_an_amount_is_written_once_and_means_the_same_to_a_thousandth(text: str) -> None:
    before, stored = read_quantity(text), write_quantity(text)
    after = read_quantity(stored)
    assert write_quantity(stored) == stored
    assert before is not None
    assert after is not None
    assert 0 <= after - before < 1
    assert len(stored) <= 40
    if before * 1000 == int(before * 1000):
        assert after == before


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        *(
            ("0", "0"),
            ("0Ki", "0"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1000", "1k"),
            ("1.5k", "1500"),
        ),
        *(("1024Ki", "1Mi"), ("1.5Gi", "1536Mi"), ("1000Ki", "1000Ki"), ("512Ki", "512Ki"), ("0.5Ki", "512")),
        *(("1e3", "1e3"), ("1000e0", "1e3"), ("1e-2", "10e-3"), ("9E", "9E"), ("100u", "1m"), ("-1500m", "-1500m")),
    ],
)
def test_amounts_are_written_in_their_shortest_form(sent: str, stored: str) -> None:
    assert write_quantity(sent) == stored
