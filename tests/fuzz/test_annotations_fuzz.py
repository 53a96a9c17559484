"""Whatever stands in a Service's annotations: wishes, and Problems that name the annotation; never an exception."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.values import service

from vipwire.model.service import Service
from vipwire.plan.annotations.wishes import read_weights, read_wishes, wants_local
from vipwire.plan.annotations.words import KUBE_ROUTER, PREFIX, WORDS

_NUMBERS = st.one_of(st.integers(), st.floats(), st.integers(-2, 70000), st.integers(10**15, 10**25)).map(str)
_WEIGHTS = st.dictionaries(
    st.sampled_from(("10.0.0.1", "fd00::1", "10.0.0.999", "", "10.0.0.01")),
    st.one_of(st.integers(-1, 300), st.floats(), st.booleans(), st.text(max_size=4), st.none()),
    max_size=4,
).map(json.dumps)
_RANGES = st.lists(st.tuples(st.integers(-1, 70000), st.integers(-1, 70000)), max_size=3).map(
    lambda pairs: ",".join(f"{first}-{last}" for first, last in pairs)
)
_UNITS = st.builds("{}{}".format, _NUMBERS, st.sampled_from(("", "s", "m", "h", "ms", "d", "%", "²", "٣")))
_KNOWN = sorted({text for word in WORDS for text in word.values.replace("`", "").split()})
_VALUES = st.one_of(st.sampled_from(_KNOWN), _UNITS, _WEIGHTS, _RANGES, st.text(max_size=20), st.just("9" * 5000))
_KEYS = st.one_of(
    st.sampled_from([word.key for word in WORDS]),
    st.builds("{}{}".format, st.sampled_from((PREFIX, KUBE_ROUTER)), st.text(max_size=10)),
    st.text(max_size=10),
)


def annotated(found: dict[str, str]) -> Service:
    return replace(service("web"), annotations=tuple(sorted(found.items())))


@given(st.dictionaries(_KEYS, _VALUES, max_size=6))
def test_annotations_are_wishes_and_problems(found: dict[str, str]) -> None:
    wishes = read_wishes(annotated(found))
    assert read_wishes(annotated(found)) == wishes
    assert isinstance(wants_local(found), bool)
    weights, said = read_weights(found)
    assert all(isinstance(weight, int) and weight >= 0 for weight in weights.values())
    assert all(isinstance(each, str) and each for each in said)
