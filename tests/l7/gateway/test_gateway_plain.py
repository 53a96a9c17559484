"""Ports where all routes are prefixes of hosts in full: whatever way a client writes a host, it is the same host."""

from collections.abc import Iterator

import pytest
from tests.fakes import http2
from tests.fakes.spellings import Exchange, exchanged
from tests.l7.gateway.site import GatewaySite, gateways, list_all

SITE = """
--- Gateway edge
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: one, port: $one, protocol: HTTP}
  - {name: two, port: $two, protocol: HTTP}
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}}}
spec:
  parentRefs: [{{name: edge, sectionName: {port}}}]
  hostnames: [{host}]
  rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: {port}, port: 8080}}]}}]
"""


FILTERED = """
--- HTTPRoute filtered
spec:
  parentRefs: [{name: edge, sectionName: two}]
  hostnames: [c.org]
  rules:
  - backendRefs: [{name: two, port: 8080}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {remove: [X-Forwarded-For], set: [{name: X-Forwarded-Proto, value: https}]}
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("plain")) as site:
        site.pods("one", "two")
        site.put(SITE)
        site.put(ROUTE.format(name="shop", port="one", host="a.org", path="/shop"))
        site.put(ROUTE.format(name="all", port="two", host="a.org", path="/"))
        site.put(ROUTE.format(name="other", port="two", host="b.org", path="/"))
        site.put(FILTERED)
        list_all(site)
        site.settle()
        yield site


@pytest.mark.parametrize("host", ["a.org", "A.Org", "a.org:1", "A.ORG:$one", "a.org:$two"])
@pytest.mark.parametrize(
    ("path", "pod"), [("/shop", "one"), ("/shop/?q=/y", "one"), ("/shopping", "404"), ("/Shop", "404"), ("/", "404")]
)
def test_a_host_is_found_however_it_is_written(here: GatewaySite, host: str, path: str, pod: str) -> None:
    sent = host.replace("$one", str(here.port("one"))).replace("$two", str(here.port("two")))
    assert here.ask("one", sent, path).pod == pod


@pytest.mark.parametrize("host", ["b.org", "b.org:$two", "B.org:$two", "", "*", ":$two"])
def test_no_host_leads_to_another_ports_routes(here: GatewaySite, host: str) -> None:
    sent = host.replace("$two", str(here.port("two")))
    assert here.ask("one", sent, "/").pod == "404"


@pytest.mark.parametrize("host", ["a.org", "A.org"])
def test_requests_for_no_path_are_those_for_the_root(here: GatewaySite, host: str) -> None:
    """The Pod, which knows paths alone, answers in words of its own."""
    of_server = ("-X", "OPTIONS", "--request-target", "*", "-H", f"Host: {host}")
    code, text = here.curl(*of_server, f"http://127.0.0.1:{here.port('two')}")
    assert code == 0
    assert text
    assert "no rule for" not in text


def test_all_requests_of_a_connection_tell_whose_it_is(here: GatewaySite) -> None:
    url = f"http://127.0.0.1:{here.port('two')}/"
    said = ("-H", "Host: a.org", "-H", "X-Forwarded-For: 192.0.2.1", "-H", "X-Forwarded-For: 192.0.2.2")
    for address in ("127.0.0.8", "127.0.0.9"):
        _, output = here.curl("--interface", address, *said, "-w", "%{num_connects}\n", url, url)
        assert output.count(f'"x-forwarded-for": "{address}"') == 2
        assert "192.0.2" not in output
        assert [output.count(f"}}{number}\n") for number in (1, 0)] == [1, 1]


FORGED = ("X_Forwarded_For", "Forwarded", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Original-URL", "X-Rewrite-URL")


@pytest.mark.attack
@pytest.mark.parametrize("exchange", [exchanged, http2.exchanged], ids=["HTTP/1.1", "HTTP/2"])
def test_headers_of_clients_tell_pods_nothing_of_where_requests_come_from(
    here: GatewaySite, exchange: Exchange
) -> None:
    lines = ("GET / HTTP/1.1", "Host: a.org", *(f"{name}: 6" for name in FORGED), "X-Other: 6", "Connection: close")
    status, told = here.run(exchange(here.port("two"), "".join(f"{each}\r\n" for each in (*lines, ""))))
    assert status == 200
    headers = {name.lower() for name in told["headers"]}
    assert "x-other" in headers
    assert not headers & {name.lower() for name in FORGED}


def test_filters_come_after_what_haproxy_tells_of_clients(here: GatewaySite) -> None:
    seen = here.ask("two", "c.org").seen["headers"]
    assert "x-forwarded-for" not in seen
    assert seen["x-forwarded-proto"] == "https"
    assert "base,concat(/)" in (here.haproxy.folder / "haproxy.cfg").read_text()


def test_a_new_route_is_served_without_a_reload(here: GatewaySite) -> None:
    here.done.clear()
    here.put(ROUTE.format(name="new", port="one", host="new.org", path="/"))
    here.settle()
    assert [each.reload for each in here.done if each.reload] == []
    assert here.ask("one", "new.org:80", "/x").pod == "one"
    assert here.ask("two", "new.org", "/x").pod == "404"
