"""Every parameter of a query, in twelve spellings, as apimachinery reads them: by requests to a whole server."""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, in_cluster, service

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.parameters import Parameters

WEB = f"{SERVICES}/web"
PAIR: Final = ("&{0}=true&{0}=false", "&{0}=false&{0}=true")
FLAG: Final[dict[str, bool]] = {
    "": False,
    "&{0}=true": True,
    "&{0}=True": True,
    "&{0}=TRUE": True,
    "&{0}=t": True,
    "&{0}=yes": True,
    "&{0}=1": True,
    "&{0}=": True,
    "&{0}": True,
    "&{0}=false": False,
    "&{0}=FALSE": False,
    "&{0}=0": False,
    "&{0}=f": True,
    PAIR[0]: True,
    PAIR[1]: False,
}


async def first_line(here: Here, query: str) -> tuple[str, Any]:
    async with here.watch(f"{SERVICES}?watch=true&timeoutSeconds=1{query}") as events:
        try:
            return await events.next()
        except EOFError:
            return "", {}


async def watches(here: Here, query: str) -> bool:
    _, answer = await here.send("GET", f"{SERVICES}?timeoutSeconds=1{query}")
    return not (isinstance(answer, dict) and answer.get("kind") == "ServiceList")


async def has_bookmarks(here: Here, query: str) -> bool:
    return (await first_line(here, f"&resourceVersion={here.store.revision}{query}"))[0] == "BOOKMARK"


async def marks_the_beginning(here: Here, query: str) -> bool:
    if not query:
        return False
    common = "&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnone"
    kind, value = await first_line(here, common + query)
    annotations = value.get("metadata", {}).get("annotations", {})
    return kind == "BOOKMARK" and annotations.get("k8s.io/initial-events-end") == "true"


async def is_forced(here: Here, query: str) -> bool:
    path, content = f"{WEB}?dryRun=All&fieldManager=", "apply-patch+yaml"
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"sessionAffinity": "ClientIP"},
    }
    code, _ = await here.send("PATCH", f"{path}another{query}", body, patch=content)
    assert code in (200, 409)
    return code == 200


async def orphans(here: Here, query: str) -> bool:
    _, answer = await here.send("DELETE", f"{WEB}?dryRun=All{query}")
    return "orphan" in answer["metadata"].get("finalizers", ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("watch", watches),
        ("allowWatchBookmarks", has_bookmarks),
        ("sendInitialEvents", marks_the_beginning),
        ("force", is_forced),
        ("orphanDependents", orphans),
    ],
)
@in_cluster()
async def test_flags(here: Here, name: str, effect: Callable[[Here, str], Awaitable[bool]]) -> None:
    await here.post(f"{SERVICES}?fieldManager=one", service("web", sessionAffinity="None"))
    found = {spelling: await effect(here, spelling.format(name)) for spelling in FLAG}
    assert found == FLAG


@pytest.mark.parametrize(
    ("spelling", "limit", "seconds", "revision"),
    [
        ("", 0, None, 0),
        ("n=5", 5, None, 5),
        ("n=05", 5, None, 5),
        ("n=%2B5", 5, None, ApiError),
        ("n=-5", -5, None, ApiError),
        ("n=", ApiError, ApiError, 0),
        ("n=0", 0, 0.0, 0),
        ("n=5.0", ApiError, ApiError, ApiError),
        ("n=0x5", ApiError, ApiError, ApiError),
        ("n=%205", ApiError, ApiError, ApiError),
        ("n=5_0", ApiError, ApiError, ApiError),
        ("n=9223372036854775807", (1 << 63) - 1, None, (1 << 63) - 1),
        ("n=-9223372036854775808", -1 << 63, None, ApiError),
        ("n=9223372036854775808", ApiError, ApiError, ApiError),
        ("n=%D9%A5", ApiError, ApiError, ApiError),
        ("n=5&n=6", 5, None, 5),
        ("n=30s", ApiError, 30.0, ApiError),
        ("n=1m30s", ApiError, 90.0, ApiError),
        ("n=500ms", ApiError, 0.5, ApiError),
        ("n=1.5h", ApiError, 5400.0, ApiError),
        ("n=-1s", ApiError, -1.0, ApiError),
        ("n=s", ApiError, ApiError, ApiError),
        ("n=1d", ApiError, ApiError, ApiError),
        ("n=30s&n=1s", ApiError, 30.0, ApiError),
        ("n=" + "0" * 5000, 0, ApiError, 0),
    ],
)
def test_numbers_revisions_and_durations(spelling: str, limit: Any, seconds: Any, revision: Any) -> None:
    def read(reader: Callable[[str], Any]) -> Any:
        try:
            return reader("n")
        except ApiError as error:
            return ApiError if error.code == 400 else error

    query = Parameters(parse_qsl(spelling, keep_blank_values=True))
    assert (read(query.number) or 0) == limit
    assert read(query.revision) == revision
    if seconds is not None or "n=" not in spelling:
        assert read(query.duration) == seconds


DRY: Final = {
    "": 201,
    "&dryRun=All": 201,
    "&dryRun=All&dryRun=All": 201,
    "&dryRun=": 422,
    "&dryRun": 422,
    "&dryRun=all": 422,
    "&dryRun=ALL": 422,
    "&dryRun=true": 422,
    "&dryRun=All&dryRun=Some": 422,
    "&dryRun=Some&dryRun=All": 422,
    "&dryRun=All,All": 422,
    "&dryRun=%20All": 422,
}
VALIDATION: Final = {
    "": 201,
    "&fieldValidation=": 201,
    "&fieldValidation=Warn": 201,
    "&fieldValidation=Ignore": 201,
    "&fieldValidation=Strict": 400,
    "&fieldValidation=strict": 422,
    "&fieldValidation=STRICT": 422,
    "&fieldValidation=%20Strict": 422,
    "&fieldValidation=true": 422,
    "&fieldValidation=Strict,Warn": 422,
    "&fieldValidation=Warn&fieldValidation=Strict": 201,
    "&fieldValidation=Strict&fieldValidation=Warn": 400,
}
PROPAGATION: Final = {
    "": 200,
    "&propagationPolicy=": 200,
    "&propagationPolicy=Background": 200,
    "&propagationPolicy=Foreground": 200,
    "&propagationPolicy=Orphan": 200,
    "&propagationPolicy=background": 422,
    "&propagationPolicy=ORPHAN": 422,
    "&propagationPolicy=None": 422,
    "&propagationPolicy=%20Orphan": 422,
    "&propagationPolicy=Orphan,Background": 422,
    "&propagationPolicy=Orphan&propagationPolicy=None": 200,
    "&propagationPolicy=None&propagationPolicy=Orphan": 422,
}
PRECONDITIONS: Final = {
    "&uid=none": 409,
    "&uid=": 200,
    "&uid={uid}": 200,
    "&uid={uid}&uid=none": 200,
    "&uid=none&uid={uid}": 409,
    "&resourceVersion=1": 409,
    "&resourceVersion=": 200,
    "&resourceVersion={version}": 200,
    "&resourceVersion={version}&resourceVersion=1": 200,
    "&resourceVersion=1&resourceVersion={version}": 409,
    "&uid={uid}&resourceVersion={version}": 200,
    "&uid={uid}&resourceVersion=1": 409,
}
GRACE: Final = {
    "": 200,
    "&gracePeriodSeconds=0": 200,
    "&gracePeriodSeconds=30": 200,
    "&gracePeriodSeconds=%2B30": 200,
    "&gracePeriodSeconds=030": 200,
    "&gracePeriodSeconds=0&gracePeriodSeconds=x": 200,
    "&gracePeriodSeconds=": 400,
    "&gracePeriodSeconds=x": 400,
    "&gracePeriodSeconds=1.5": 400,
    "&gracePeriodSeconds=30s": 400,
    "&gracePeriodSeconds=9223372036854775808": 400,
    "&gracePeriodSeconds=x&gracePeriodSeconds=0": 400,
}
TIMEOUT: Final = {
    "": 200,
    "&timeout=0": 200,
    "&timeout=0s": 200,
    "&timeout=32s": 200,
    "&timeout=1m30s": 200,
    "&timeout=2h": 200,
    "&timeout=30s&timeout=x": 200,
    "&timeout=": 400,
    "&timeout=30": 400,
    "&timeout=x": 400,
    "&timeout=1d": 400,
    "&timeout=s": 400,
}
LIMIT: Final = {
    "": (200, 3),
    "&limit=2": (200, 2),
    "&limit=%2B2": (200, 2),
    "&limit=02": (200, 2),
    "&limit=0": (200, 3),
    "&limit=-1": (200, 3),
    "&limit=2&limit=1": (200, 2),
    "&limit=99": (200, 3),
    "&limit=": (400, 0),
    "&limit=many": (400, 0),
    "&limit=2.0": (400, 0),
    "&limit=9223372036854775808": (400, 0),
}
LABELS: Final = {
    "": (200, 3),
    "&labelSelector=": (200, 3),
    "&labelSelector=app%3Da": (200, 1),
    "&labelSelector=app%3D%3Da": (200, 1),
    "&labelSelector=%20app%20%3D%20a%20": (200, 1),
    "&labelSelector=app!%3Da": (200, 2),
    "&labelSelector=app%20in%20(a,b)": (200, 2),
    "&labelSelector=app%20notin%20(a,b)": (200, 1),
    "&labelSelector=!app": (200, 0),
    "&labelSelector=app": (200, 3),
    "&labelSelector=app%3Da&labelSelector=app%3Db": (200, 1),
    "&labelSelector=app%20in": (400, 0),
    "&labelSelector=%3Da": (400, 0),
}
FIELDS: Final = {
    "": (200, 3),
    "&fieldSelector=": (200, 3),
    "&fieldSelector=metadata.name%3Da": (200, 1),
    "&fieldSelector=metadata.name%3D%3Da": (200, 1),
    "&fieldSelector=metadata.name!%3Da": (200, 2),
    "&fieldSelector=metadata.name%3Da,metadata.name%3Db": (200, 0),
    "&fieldSelector=metadata.namespace%3Ddefault": (200, 3),
    "&fieldSelector=metadata.name%3Da&fieldSelector=x": (200, 1),
    "&fieldSelector=metadata.name": (400, 0),
    "&fieldSelector=metadata.labels%3Dx": (400, 0),
    "&fieldSelector=%3Da": (400, 0),
    "&fieldSelector=spec.ports%3D80": (400, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", SERVICES, DRY),
        ("POST", f"{SERVICES}?dryRun=All", VALIDATION),
        ("DELETE", f"{WEB}?dryRun=All", PROPAGATION),
        ("DELETE", f"{WEB}?dryRun=All", PRECONDITIONS),
        ("DELETE", f"{WEB}?dryRun=All", GRACE),
        ("GET", SERVICES, TIMEOUT),
    ],
)
@in_cluster()
async def test_words(here: Here, method: str, path: str, expected: dict[str, int]) -> None:
    meta = (await here.post(SERVICES, service("web")))["metadata"]
    found, join = {}, "" if "?" in path else "?"
    for spelling in expected:
        body = service() | ({"strange": 1} if expected is VALIDATION else {}) if method == "POST" else None
        query = spelling.format(uid=meta["uid"], version=meta["resourceVersion"])
        found[spelling] = (await here.send(method, path + join + query, body))[0]
    assert found == expected
    assert here.store.count("services") == (2 if expected is DRY else 1)


@pytest.mark.slow
@pytest.mark.parametrize("expected", [LIMIT, LABELS, FIELDS])
@in_cluster()
async def test_selections(here: Here, expected: dict[str, tuple[int, int]]) -> None:
    for name in "abc":
        body = service(name)
        body["metadata"]["labels"] = {"app": name}
        await here.post(SERVICES, body)
    found = {}
    for spelling in expected:
        code, page = await here.send("GET", f"{SERVICES}?{spelling}")
        found[spelling] = code, len(page.get("items", ()))
    assert found == expected
