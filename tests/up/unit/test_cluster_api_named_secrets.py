"""The role ingress reads the Secrets that Ingresses and Gateways name, and no others, however it asks."""

import asyncio
from typing import Any

import pytest
from tests.up.unit.cluster_here import Here, in_cluster

from vipwire_up.api.kinds.ingress import INGRESSES
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.named_secrets import NamedSecrets
from vipwire_up.store.record import Key, Write

pytestmark = pytest.mark.attack

BASE = "/api/v1/namespaces/default/secrets"
ALL = "/api/v1/secrets"
INGRESS = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
GATEWAY = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways"
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def ingress(secret: str, **annotations: str) -> dict[str, Any]:
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    meta = {"name": "site", "annotations": {name.replace("__", "/"): text for name, text in annotations.items()}}
    return {"metadata": meta, "spec": {"defaultBackend": backend, "tls": [{"secretName": secret}]}}


def gateway(*references: dict[str, str]) -> dict[str, Any]:
    listener = {"name": "tls", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": list(references)}}
    return {"metadata": {"name": "front"}, "spec": {"gatewayClassName": "vipwire", "listeners": [listener]}}


async def secrets(here: Here, *names: str) -> None:
    for name in names:
        await here.post(BASE, {"metadata": {"name": name}, "stringData": {"a": name}})


async def listed(here: Here, path: str = ALL) -> list[str]:
    code, found = await here.send("GET", path, user="ingress")
    assert code == 200, found
    return [each["metadata"]["name"] for each in found["items"]]


@in_cluster()
async def test_a_list_has_what_is_named_and_no_more(here: Here) -> None:
    await secrets(here, "cert", "gate", "other", "users")
    assert await listed(here) == []
    await here.post(INGRESS, ingress("cert", **{"vipwire.io__auth-secret": "users"}))
    await here.post(GATEWAY, gateway({"name": "gate"}, {"name": "elsewhere", "namespace": "prod"}))
    assert await listed(here) == ["cert", "gate", "users"]
    assert await listed(here, f"{BASE}?limit=500") == ["cert", "gate", "users"]
    assert await listed(here, f"{ALL}?fieldSelector=metadata.name%3Dcert") == ["cert"]
    assert await listed(here, f"{ALL}?fieldSelector=metadata.name%3Dother") == []
    assert (await here.send("DELETE", f"{INGRESS}/site"))[0] == 200
    assert await listed(here) == ["gate"]


@in_cluster()
async def test_one_that_nothing_names_is_forbidden_and_the_words_say_why(here: Here) -> None:
    await secrets(here, "cert", "other")
    await here.post(INGRESS, ingress("cert"))
    code, found = await here.send("GET", f"{BASE}/cert", user="ingress")
    assert (code, found["data"]) == (200, {"a": "Y2VydA=="})
    code, status = await here.send("GET", f"{BASE}/other", user="ingress")
    assert (code, status["reason"]) == (403, "Forbidden")
    assert status["message"].endswith('in the namespace "default": no Ingress and no Gateway refers to this Secret')
    assert (await here.send("GET", f"{BASE}/nowhere", user="ingress"))[0] == 403  # not so much as that it is none
    for verb, path in (("POST", BASE), ("DELETE", f"{BASE}/cert"), ("PUT", f"{BASE}/cert")):
        assert (await here.send(verb, path, {}, user="ingress"))[0] == 403


@pytest.mark.parametrize(("name", "allowed"), [("cert", True), ("other", False), ("", True)])
@in_cluster()
async def test_it_is_told_so_when_it_asks_what_it_may(here: Here, name: str, *, allowed: bool) -> None:
    await here.post(INGRESS, ingress("cert"))
    about = {"verb": "get", "resource": "secrets", "namespace": "default", "name": name}
    _, answer = await here.send("POST", REVIEW, {"spec": {"resourceAttributes": about}}, user="ingress")
    assert answer["status"] == {"allowed": allowed}


@in_cluster()
async def test_a_watch_shows_changes_of_what_is_named_and_ends_when_another_one_is(here: Here) -> None:
    await secrets(here, "cert", "other")
    await here.post(INGRESS, ingress("cert"))
    _, found = await here.send("GET", ALL, user="ingress")
    since = found["metadata"]["resourceVersion"]
    async with here.watch(f"{ALL}?watch=1&resourceVersion={since}", **{"X-User": "ingress"}) as events:
        for name in ("other", "cert"):
            await here.send("PATCH", f"{BASE}/{name}", {"stringData": {"b": "new"}}, patch="merge-patch+json")
        kind, value = await events.next()
        assert (kind, value["metadata"]["name"]) == ("MODIFIED", "cert")
        await here.send("PUT", f"{INGRESS}/site", ingress("other"))
        kind, value = await events.next()
        assert (kind, value["code"], value["reason"]) == ("ERROR", 410, "Expired")
        with pytest.raises(EOFError):
            await events.next()
    assert await listed(here) == ["other"]
    async with here.watch(f"{ALL}?watch=1&resourceVersion={since}", **{"X-User": "ingress"}) as events:
        assert (await events.next())[1]["code"] == 410  # it was another one at that version


@in_cluster()
async def test_a_watch_goes_on_when_a_secret_is_named_that_comes_later(here: Here) -> None:
    _, found = await here.send("GET", ALL, user="ingress")
    since = found["metadata"]["resourceVersion"]
    async with here.watch(f"{ALL}?watch=1&resourceVersion={since}", **{"X-User": "ingress"}) as events:
        await here.post(INGRESS, ingress("cert"))
        await secrets(here, "other", "cert")
        assert await events.names(1) == [("ADDED", "cert")]


@in_cluster()
async def test_the_admin_reads_all(here: Here) -> None:
    await secrets(here, "other")
    _, found = await here.send("GET", ALL)
    assert [each["metadata"]["name"] for each in found["items"]] == ["other"]


@in_cluster()
async def test_what_is_damaged_names_nothing_and_harms_nobody(here: Here) -> None:
    named = NamedSecrets(here.store)
    key, secret = Key(INGRESSES.id, "default", "odd"), Key(SECRETS.id, "default", "cert")
    values = (
        b"{",
        b'{"metadata":{"annotations":[]},"spec":{"tls":[7,{"secretName":["cert"]}]}}',
        b'{"metadata":{"annotations":{"vipwire.io/auth-secret":3}},"spec":{"tls":{"secretName":"cert"}}}',
        b'{"metadata":{},"spec":{"tls":[{"secretName":"cert"}]}}',
    )
    found = []
    for value in values:
        before = here.store.head(key)
        await here.store.write(Write(key, lambda _, value=value: value, before.revision if before else 0))  # type: ignore[misc]
        found.append(secret in named)
    assert found == [False, False, False, True]


@in_cluster()
async def test_what_was_forgotten_meanwhile_is_read_anew(here: Here) -> None:
    named = NamedSecrets(here.store)
    await here.post(INGRESS, ingress("cert"))
    assert Key(SECRETS.id, "default", "cert") in named
    await here.send("PUT", f"{INGRESS}/site", ingress("other"))
    await asyncio.gather(*(secrets(here, f"s{number}") for number in range(4)))
    await here.store.compact(here.store.revision)
    assert Key(SECRETS.id, "default", "cert") not in named
    assert Key(SECRETS.id, "default", "other") in named
