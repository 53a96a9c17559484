"""Whatever one file of a folder holds: it is read or told, and the others are read as if it were not there."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.hostile_files import TEXTS
from tests.fakes.objects import node, service, service_cidr, slice_of
from tests.fuzz.test_kube_fuzz import json_values, mutated
from tests.fuzz.test_kubeconfig_fuzz import PIECES, all_sortable, odd

from vipwire.kube.manifests.documents import MANIFESTS, ManifestReader
from vipwire.kube.manifests.source import ManifestSource, diff_inventories, list_by_kind
from vipwire.watched_objects.store import Store
from vipwire_l7.gateway.watch.kinds import WITH_INGRESS, make_manifest_reader
from vipwire_l7.watch.kinds import MANIFESTS as INGRESS
from vipwire_up.dns.objects import MANIFESTS as DNS

READERS: Final[tuple[ManifestReader[Any, Any], ...]] = (MANIFESTS, DNS, INGRESS, make_manifest_reader(WITH_INGRESS))
SOUND: Final = (
    *(service(1), slice_of(1, 3), node("n"), service_cidr("c", "10.0.0.0/8")),
    {"apiVersion": "v1", "kind": "List", "items": [service(2), {"kind": "ServiceList", "apiVersion": "v1"}]},
)
TEXT: Final = "\n---\n".join(yaml.safe_dump(each) for each in SOUND)
KEYS: Final = st.sampled_from(["{a: b}: c", "[a]: b", "? {a: b}\n: c", "1: a", "~: a", "true: a", "1.5: a", "<<: 5"])
PLACES: Final = st.integers(0, len(TEXT))


@st.composite
def edited(draw: st.DrawFn) -> str:
    """Draw the text of sound manifests with pieces put in, and parts taken out."""
    text = TEXT
    for _ in range(draw(st.integers(1, 4))):
        start = draw(PLACES) % (len(text) + 1)
        text = text[:start] + draw(PIECES | KEYS | st.text(max_size=5)) + text[start + draw(st.integers(0, 20)) :]
    return text


@st.composite
def changed(draw: st.DrawFn) -> str:
    """Draw sound objects with values of any kind in any place."""
    value: Any = draw(st.sampled_from(SOUND))
    for path, wrong in draw(
        st.lists(st.tuples(st.lists(st.integers(0, 20), max_size=7), odd), min_size=1, max_size=3)
    ):
        value = mutated(value, path, wrong) if all_sortable(value) else value
    return yaml.dump(value)


contents: Final = st.one_of(
    edited().map(lambda text: text.encode(errors="surrogatepass")),
    changed().map(lambda text: text.encode(errors="surrogatepass")),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.lists(PIECES | KEYS, max_size=25).map("".join).map(str.encode),
    st.sampled_from([content if isinstance(content, bytes) else content.encode() for content, _ in TEXTS.values()]),
    st.binary(max_size=200),
    st.tuples(edited(), st.sampled_from(["utf-16", "utf-8-sig", "utf-32"])).map(
        lambda pair: pair[0].encode(pair[1], errors="replace")
    ),
)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        for number in (7, 8):
            (Path(made) / f"good-{number}.yaml").write_text(yaml.safe_dump(service(number)))
        yield Path(made)


@given(contents, st.sampled_from(["a.yaml", "z.json"]), st.sampled_from(READERS))
def test_any_content_of_a_file_costs_that_file_alone(content: bytes, name: str, reader: Any) -> None:
    with folder() as here:
        source = ManifestSource([here], reader)
        before = source.read_inventory()
        (here / name).write_bytes(content)
        after = source.read_inventory()
        assert all(after.objects.get(key) == value for key, value in before.objects.items())
        for problem in (problem for told in after.problems.values() for problem in told):
            assert "a defect of vipwire" not in problem.message, problem
            str(problem).encode()
        if reader is MANIFESTS:
            store = Store()
            for event in (*list_by_kind(before, reader.kinds), *diff_inventories(before, after)):
                store.apply(event)
        (here / name).unlink()
        assert source.read_inventory() == before
