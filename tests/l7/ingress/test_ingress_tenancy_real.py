"""The same with HAProxy and requests: a younger canary of another namespace gets none of ten."""

import copy
from typing import Any

import pytest
from tests.l7.ingress.site import Site, in_site, ingress, rule, service

pytestmark = pytest.mark.attack


def moved(value: dict[str, Any], namespace: str, created: str) -> dict[str, Any]:
    made = copy.deepcopy(value)
    made["metadata"] |= {"namespace": namespace, "creationTimestamp": created}
    return made


@in_site()
async def test_a_younger_canary_of_another_namespace_gets_no_request_and_its_lists_mean_nothing(here: Site) -> None:
    part = {
        "vipwire.io/canary": "true",
        "vipwire.io/canary-weight": "100",
        "vipwire.io/allow-source-range": "203.0.113.0/24",
    }
    await here.pods("web", "127.0.0.2")
    main = moved(ingress("web", rule("a.example.com", "/")), "default", "2020-01-01T00:00:00Z")
    evil = moved(ingress("evil", rule("a.example.com", "/"), annotations=part), "evil", "2021-01-01T00:00:00Z")
    here.put(main, moved(service("web"), "evil", ""), evil)
    await here.settled()
    assert await here.codes("a.example.com", 10) == [200] * 10
    assert here.served == ["127.0.0.2"] * 10
    assert "a canary at a.example.com, which is default/web's" in here.problems
    main["metadata"]["annotations"] = {"vipwire.io/share-with": "evil"}
    here.put(main)
    await here.settled()
    assert await here.codes("a.example.com", 10) == [403] * 10, "the canary has all, as asked, under its own list"
