"""With --hosts-apart a default backend of another namespace gets nothing of a host: real HAProxy, real requests."""

from typing import Any

import pytest
from tests.l7.ingress.site import Site, backend, endpoint, endpoint_slice, in_site, ingress, rule, service
from tests.l7.ingress.test_ingress_tenancy_real import moved

from vipwire_l7.plan.plan import Setting

pytestmark = pytest.mark.attack

VICTIM, EVIL = "127.0.0.2", "127.0.0.3"
APART = Setting(hosts_apart=True)


def exact(host: str, path: str) -> Any:
    return rule(host, path, kind="Exact")


async def two_tenants(here: Site) -> None:
    """Run a Pod of each namespace behind a Service of the same name."""
    await here.pods("web", VICTIM)
    await here.pod(EVIL)
    here.put(
        *(
            moved(each, "evil", "")
            for each in (service("web"), endpoint_slice("web", here.pod_port, [endpoint(EVIL)]))
        )
    )


def default(namespace: str, created: str, *rules: Any, name: str = "default") -> Any:
    return moved(ingress(name, *rules, defaultBackend=backend("web")), namespace, created)


async def pod_of(here: Site, host: str, path: str) -> str:
    answer = await here.curl(f"http://{host}{path}")
    return answer.pod if answer.code == 200 else str(answer.code)


@in_site(setting=APART)
async def test_a_default_backend_of_another_namespace_gets_no_path_of_a_host(here: Site) -> None:
    """Of plain hosts, of those under a wildcard, and where all paths are Exact or none is a host's own."""
    await two_tenants(here)
    hosts = (rule("a.example.com", "/app"), rule("*.wild.example.com", "/app"), exact("exact.example.com", "/app"))
    here.put(default("evil", "2019-01-01T00:00:00Z"))
    here.put(moved(ingress("site", *hosts), "default", "2020-01-01T00:00:00Z"))
    await here.settled()
    for host in ("a.example.com", "x.wild.example.com", "exact.example.com"):
        assert await pod_of(here, host, "/app") == VICTIM, host
        assert await pod_of(here, host, "/other") == "404", host
        for same in (f"{host}.", f"{host}.:80", host.upper() + "."):  # the root's dot names the same host
            assert (await here.curl(f"http://{host}/app", "-H", f"Host: {same}")).pod == VICTIM, same
            assert (await here.curl(f"http://{host}/other", "-H", f"Host: {same}")).code == 404, same
    assert await pod_of(here, "free.example.com", "/") == EVIL, "a host of nobody's goes to the default backend"


@in_site(setting=APART)
async def test_naming_the_host_does_not_lead_its_other_paths_to_a_default_backend(here: Site) -> None:
    await two_tenants(here)
    here.put(
        moved(ingress("site", rule("a.example.com", "/app"), rule("", "/all")), "default", "2020-01-01T00:00:00Z")
    )
    here.put(default("evil", "2021-01-01T00:00:00Z", rule("a.example.com", "/app/login"), rule("", "/mine")))
    await here.settled()
    assert await pod_of(here, "a.example.com", "/app/login") == VICTIM
    assert await pod_of(here, "a.example.com", "/other") == "404"
    assert await pod_of(here, "b.example.com", "/all") == VICTIM
    assert await pod_of(here, "b.example.com", "/mine") == "404", "rules without a host are the first one's as well"


@in_site(setting=APART)
async def test_a_host_s_own_default_backend_serves_it_although_another_namespace_s_is_older(here: Site) -> None:
    await two_tenants(here)
    here.put(default("evil", "2019-01-01T00:00:00Z"), default("default", "2020-01-01T00:00:00Z"))
    site = moved(ingress("site", rule("a.example.com", "/app")), "default", "2020-01-01T00:00:00Z")
    here.put(site)
    await here.settled()
    assert await pod_of(here, "a.example.com", "/other") == VICTIM
    here.remove("Ingress", "default")
    await here.settled()
    assert await pod_of(here, "a.example.com", "/other") == "404"
    site["metadata"]["annotations"] = {"vipwire.io/share-with": "evil"}
    here.put(site)
    await here.settled()
    assert await pod_of(here, "a.example.com", "/other") == EVIL, "the host's namespace shares it"


@in_site()
async def test_hosts_that_are_not_apart_share_a_default_backend(here: Site) -> None:
    await two_tenants(here)
    here.put(default("evil", "2019-01-01T00:00:00Z"))
    here.put(moved(ingress("site", rule("a.example.com", "/app")), "default", "2020-01-01T00:00:00Z"))
    await here.settled()
    assert await pod_of(here, "a.example.com", "/other") == EVIL
