"""Changes that no worker of HAProxy is replaced for: it takes them by commands, and has then what a new one would."""

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.l7.gateway.site import GatewaySite, gateways, list_all, tls_secret

from vipwire_l7.watch.objects import IngressKind

pytestmark = pytest.mark.haproxy

EDGE = """
--- Gateway edge
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: http, port: $edge, protocol: HTTP}
  - {name: a, port: $tls, protocol: HTTPS, hostname: a.org, tls: {certificateRefs: [{name: a}]}}
  - {name: b, port: $tls, protocol: HTTPS, hostname: b.org, tls: {certificateRefs: [{name: b}]}}
"""
LISTENER = "  - {name: c, port: $tls, protocol: HTTPS, hostname: c.org, tls: {certificateRefs: [{name: c}]}}\n"
SPLIT = "{name: v1, port: 8080, weight: %d}, {name: v2, port: 8080, weight: %d}"
PLAIN = "{name: %s, port: 8080}"


def route(name: str, backends: str, path: str = "/") -> str:
    return (
        f"--- HTTPRoute {name}\nspec:\n  parentRefs: [{{name: edge}}]\n  hostnames: [{name}]\n"
        f"  rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{backends}]}}]\n"
    )


def common_name(here: GatewaySite, host: str) -> str:
    """Return the subject of the certificate that a client gets."""
    port = here.port("tls")
    where = (f"https://{host}:{port}/", "--resolve", f"{host}:{port}:127.0.0.1")
    _, text = here.curl("-kv", "--stderr", "-", *where)
    return next((line for line in text.splitlines() if "subject:" in line), text)


def reloads(here: GatewaySite) -> list[str]:
    return [each.reload for each in here.done if each.reload]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("runtime")) as made:
        made.pods("v1", "v2")
        for name in ("a", "b"):
            made.put(tls_secret(name, f"{name}.org"))
        made.put(EDGE + route("a.org", PLAIN % "v1", "/old") + route("split.org", SPLIT % (9, 1)))
        list_all(made)
        made.settle()
        yield made


def test_a_new_path_and_host_are_commands(here: GatewaySite) -> None:
    here.put(route("a.org", PLAIN % "v2", "/app") + route("b.org", PLAIN % "v2"))
    here.settle()
    assert (here.ask("edge", "a.org", "/app").pod, here.ask("edge", "b.org").pod) == ("v2", "v2")
    assert reloads(here) == ["start"]


def test_a_service_that_is_new_takes_a_spare_backend_until_it_goes(here: GatewaySite) -> None:
    for _ in range(2):
        here.pods("new")
        here.put(route("c.org", PLAIN % "new"))
        here.settle()
        assert here.ask("edge", "c.org").pod == "new"
        here.remove(IngressKind.HTTP_ROUTE, "c.org")
        here.settle()
        assert here.ask("edge", "c.org").status == 404
    assert reloads(here) == ["start"]


def test_weights_of_a_split_are_entries_of_a_map(here: GatewaySite) -> None:
    for first, second in ((1, 1), (0, 1), (1, 9), (90, 10), (1, 2), (97, 130)):
        here.put(route("split.org", SPLIT % (first, second)))
        here.settle()
        found = Counter(here.ask("edge", "split.org").pod for _ in range(200))
        share = 200 * first // (first + second)
        assert abs(found["v1"] - share) <= (45 if first and second else 0)
    assert reloads(here) == ["start"]


def test_a_new_certificate_and_a_renewed_one_are_commands(here: GatewaySite) -> None:
    here.put(tls_secret("c", "c.org"))
    here.put(EDGE + LISTENER)
    here.settle()
    assert "c.org" in common_name(here, "c.org")
    here.put(tls_secret("c", "renewed.org"))
    here.settle()
    assert "renewed.org" in common_name(here, "c.org")
    here.put(EDGE)
    here.settle()
    assert "c.org" not in common_name(here, "c.org")
    assert reloads(here) == ["start"]
