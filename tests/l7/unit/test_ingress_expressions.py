"""Which expressions may guard, and what is closed in place of those that may not."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from tests.l7.unit.test_ingress_plan_unit import planned, ruled

from vipwire_l7.plan.expressions import find_literal_prefix, is_costly
from vipwire_l7.plan.sites import Match, find_sites_with_guarding_expressions
from vipwire_l7.watch.objects import PathType


@pytest.mark.parametrize(
    "expression",
    ["/(a+)+", "/(a|b*)*x", r"/(.*)\1", "/((a{2,})){3,}", "/.*a.*b.*c.*d", "/(?:x+x+)+y", "/(a+)+?", "/(a*){10}"],
)
def test_these_may_need_too_many_steps(expression: str) -> None:
    assert is_costly(expression)


@pytest.mark.parametrize(
    "expression", ["/admin", "/api/v[0-9]+/.*", "/(a|b)*/admin", "/(a+)(b+)", "/[*+(]+x*", r"/\(a+\)+", "/x(/.*)?$"]
)
def test_these_do_not(expression: str) -> None:
    assert not is_costly(expression)


@pytest.mark.parametrize(
    ("expression", "prefix"),
    [("/api/v1/(a+)+", "/api/v1"), ("^/api/v1.*", "/api"), ("/(a+)+", ""), ("/api/x|/y", ""), ("/a/bc?", "/a")],
)
def test_what_an_expression_begins_with(expression: str, prefix: str) -> None:
    assert find_literal_prefix(expression) == prefix


def test_what_cannot_be_guarded_is_closed_and_nothing_else() -> None:
    asked = {"vipwire.io/use-regex": "true", "vipwire.io/deny-source-range": "10.0.0.0/8"}
    paths = tuple((path, PathType.PREFIX) for path in ("/", "/api", "/api/x", "/apix"))
    costly = ruled("costly", ("/api/(a+)+", PathType.IMPLEMENTATION_SPECIFIC))
    guarded = replace(costly, annotations=MappingProxyType(asked))
    plan = planned(ruled("all", *paths), guarded)
    targets = {route.path: route.target for route in plan.routes}
    assert targets == {"": "default:web:80", "/api": "closed", "/api/x": "closed", "/apix": "default:web:80"}
    assert "all of /api is denied" in str(plan.problems[-1])
    assert not find_sites_with_guarding_expressions(plan)
    free = replace(costly, annotations=MappingProxyType({"vipwire.io/use-regex": "true"}))
    open_plan = planned(ruled("all", *paths), free)
    assert {route.match for route in open_plan.routes} == {Match.PREFIX, Match.EXPRESSION}
    good = replace(ruled("good", ("/api/.*", PathType.IMPLEMENTATION_SPECIFIC)), annotations=MappingProxyType(asked))
    assert find_sites_with_guarding_expressions(planned(good)) == ("a.org",)
