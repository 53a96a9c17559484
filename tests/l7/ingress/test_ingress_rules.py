"""The rules of Ingress v1, with curl against a real HAProxy: hosts, paths, defaults, classes, load balancing."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from tests.fakes.ports import free_port
from tests.l7.ingress.site import (
    TRIAL,
    Site,
    backend,
    endpoint,
    endpoint_slice,
    in_site,
    ingress,
    rule,
    service,
    site,
)

from vipwire_l7.plan.plan import Setting

ONE, TWO, THREE = "127.0.0.11", "127.0.0.12", "127.0.0.13"


async def two_services(here: Site) -> None:
    await here.pods("web", ONE)
    await here.pods("other", TWO)


@in_site()
async def test_paths_are_chosen_by_kubernetes_precedence(here: Site) -> None:
    expected = {
        "/foo": ONE,
        "/foo/": ONE,
        "/foo/bar": ONE,
        "/foo?a=b": ONE,
        "/foobar": 404,
        "/foo/bar/deep": TWO,
        "/foo/bar/deep/er": TWO,
        "/foo/bar/deeper": ONE,
        "/exact": TWO,
        "/exact/": 404,
        "/exact/more": 404,
        "/both": TWO,
        "/both/more": ONE,
        "/FOO": 404,
        "/slash": ONE,
        "/slash/": ONE,
        "/semi;colon/x": 400,  # servers that cut a path at a semicolon take it for another one
        "/at@colon:plus+/x": ONE,
        "/any/more": TWO,
        "/anymore": 404,
        "/": 404,
    }
    await two_services(here)
    first = rule("a.example.com", "/foo", "/both", "/slash/", "/semi;colon", "/at@colon:plus+")
    second = rule("a.example.com", "/foo/bar/deep", service="other")
    third = rule("a.example.com", "/exact", "/both", service="other", kind="Exact")
    fourth = rule("a.example.com", "/any", service="other", kind="ImplementationSpecific")
    here.put(ingress("web", first, second, third, fourth))
    await here.settled()
    answers = {path: await here.curl(f"http://a.example.com{path}") for path in expected}
    found = {path: answer.pod if answer.code == 200 else answer.code for path, answer in answers.items()}
    assert found == expected


@in_site()
async def test_hosts_exact_before_wildcard_before_none(here: Site) -> None:
    expected = {
        "a.example.com/": ONE,
        "A.Example.COM/": ONE,
        "b.example.com/": TWO,
        "a.b.example.com/": THREE,
        "example.com/": THREE,
        "elsewhere.org/": THREE,
        "a.example.com/only-for-all": ONE,
        "b.example.com/x": TWO,
    }
    await two_services(here)
    await here.pods("third", THREE)
    rules = (rule("a.example.com", "/"), rule("*.example.com", "/", service="other"), rule("", "/", service="third"))
    here.put(ingress("web", *rules))
    await here.settled()
    found = {where: (await here.curl(f"http://{where}")).pod for where in expected}
    assert found == expected


@in_site()
async def test_the_default_backend_takes_what_no_rule_matches(here: Site) -> None:
    await two_services(here)
    here.put(ingress("default", defaultBackend=backend("other")), ingress("web", rule("a.example.com", "/foo")))
    await here.settled()
    assert (await here.curl("http://a.example.com/foo")).pod == ONE
    assert (await here.curl("http://a.example.com/else")).pod == TWO
    assert (await here.curl("http://nowhere.example.com/")).pod == TWO


@in_site()
async def test_only_ingresses_of_our_class_are_served(here: Site) -> None:
    await two_services(here)
    annotated = ingress(
        "annotated", rule("old.example.com", "/"), annotations={"kubernetes.io/ingress.class": "vipwire"}
    )
    del annotated["spec"]["ingressClassName"]
    without = ingress("without", rule("without.example.com", "/"))
    del without["spec"]["ingressClassName"]
    theirs = ingress("theirs", rule("theirs.example.com", "/"), ingressClassName="nginx")
    named = ingress("named", rule("named.example.com", "/"), ingressClassName="edge")
    here.put(annotated, without, theirs, named, ingress("ours", rule("ours.example.com", "/")))
    klass = {"kind": "IngressClass", "metadata": {"name": "edge"}, "spec": {"controller": "vipwire.io/ingress"}}
    here.put(klass)
    await here.settled()

    expected = {"old": 200, "without": 404, "theirs": 404, "named": 200, "ours": 200}
    assert await here.codes_of(*expected) == expected
    klass["metadata"] = {"name": "edge", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}
    here.put(klass)
    await here.settled()
    assert await here.codes_of("without") == {"without": 200}


@in_site(setting=Setting(without_class=True))
async def test_without_a_class_when_asked_for(here: Site) -> None:
    await two_services(here)
    without = ingress("without", rule("without.example.com", "/"))
    del without["spec"]["ingressClassName"]
    here.put(without)
    await here.settled()
    assert (await here.curl("http://without.example.com/")).pod == ONE


@in_site()
async def test_requests_are_spread_over_ready_endpoints(here: Site) -> None:
    await here.pods("web", ONE, TWO, THREE)
    endpoints = [endpoint(ONE), endpoint(TWO), endpoint(THREE, ready=False)]
    here.put(endpoint_slice("web", here.pod_port, endpoints), ingress("web", rule("a.example.com", "/", port="http")))
    await here.settled()
    assert [(await here.curl("http://a.example.com/")).pod for _ in range(10)].count(ONE) == 5
    assert set(here.served) == {ONE, TWO}


@in_site()
async def test_weights_of_a_service_are_shares_of_its_requests(here: Site) -> None:
    await here.pods("web", ONE, TWO)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    weighted = service("web")
    for weights, expected in (
        (f'{{"{ONE}": 3}}', {ONE: 9, TWO: 3}),
        (f'{{"{ONE}": 1, "{TWO}": 5}}', {ONE: 2, TWO: 10}),
        (f'{{"{TWO}": 0}}', {ONE: 12}),
    ):
        weighted["metadata"]["annotations"] = {"vipwire.io/weights": weights}
        here.put(weighted)
        await here.settled()
        assert Counter([(await here.curl("http://a.example.com/")).pod for _ in range(12)]) == expected
    assert len(here.reloads) == 1


def for_zone(address: str, *zones: str) -> dict[str, Any]:
    """Write an endpoint with hints."""
    return endpoint(address) | {"hints": {"forZones": [{"name": zone} for zone in zones]}}


@in_site(setting=Setting(zone="b"))
async def test_new_clients_get_the_endpoints_of_our_zone(here: Site, tmp_path: Path) -> None:
    await here.pods("web", ONE, TWO, THREE)
    here.put(ingress("web", rule("a.example.com", "/"), annotations={"vipwire.io/affinity": "cookie"}))
    await here.settled()
    jar = ("-b", str(tmp_path / "jar"), "-c", str(tmp_path / "jar"))
    while (await here.curl("http://a.example.com/", *jar)).pod != ONE:
        (tmp_path / "jar").unlink()
    reloads = len(here.reloads)
    for endpoints, expected in (
        ([for_zone(ONE, "a"), for_zone(TWO, "b"), for_zone(THREE, "b", "c")], {TWO, THREE}),
        ([for_zone(ONE, "a"), for_zone(TWO, "b"), for_zone(THREE, "a")], {TWO}),
        ([for_zone(ONE, "a"), for_zone(TWO, "c"), for_zone(THREE, "a")], {ONE, TWO, THREE}),  # none is for us
        ([for_zone(ONE, "a"), for_zone(TWO, "b"), endpoint(THREE)], {ONE, TWO, THREE}),  # hints are not complete
    ):
        here.put(endpoint_slice("web", here.pod_port, endpoints))
        await here.settled()
        assert await here.pods_of("http://a.example.com/") == expected
        assert await here.pods_of("http://a.example.com/", *jar, times=2) == {ONE}  # who is bound stays
    assert len(here.reloads) == reloads


@in_site()
async def test_conflicts_and_missing_things_cost_only_themselves(here: Site) -> None:
    await two_services(here)
    older, younger = (
        ingress("older", rule("a.example.com", "/")),
        ingress("a-younger", rule("a.example.com", "/", "/y")),
    )
    older["metadata"]["creationTimestamp"], younger["metadata"]["creationTimestamp"] = (
        "2026-01-01T00:00:00Z",
        "2026-02-01T00:00:00Z",
    )
    younger["spec"]["rules"][0]["http"]["paths"][0]["backend"] = backend("other")
    resource = rule("r.example.com", "/")
    resource["http"]["paths"][0]["backend"] = {"resource": {"kind": "Bucket", "name": "b"}}
    wrong = ingress("wrong", rule("b.example.com", "/", service="absent"), rule("B_D.com", "/"), resource)
    ports = ingress("ports", rule("p.example.com", "/", port=81), rule("q.example.com", "/", port="http"))
    here.put(older, younger, wrong, ports)
    await here.settled()
    assert (await here.curl("http://a.example.com/")).pod == ONE
    assert (await here.curl("http://a.example.com/y")).pod == ONE
    assert await here.codes_of(*"bpqr") == {"b": 503, "p": 503, "q": 200, "r": 404}
    for told in (
        "default/a-younger: spec.rules[0].http.paths[0].path: a.example.com/ belongs to default/older",
        "default/wrong: spec.rules[0].http.paths[0].backend.service.name: the Service default/absent does not",
        "default/wrong: spec.rules[1].host: 'B_D.com' is no host",
        "a backend of kind 'Bucket' is not supported",
        "default/web has no TCP port 81",
    ):
        assert told in here.problems


class NameServer(asyncio.DatagramProtocol):
    """A DNS server that knows the A records of one name."""

    def __init__(self, name: str) -> None:
        self.name, self.address, self.asked = dns.name.from_text(name), ONE, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question)
        (asked,) = question.question
        if asked.name != self.name:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif asked.rdtype == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text(asked.name, 1, "IN", "A", self.address))
        self.asked += 1
        self._transport.sendto(answer.to_wire(), addr)


async def test_an_external_name_is_resolved_and_followed(tmp_path: Path) -> None:
    names, port = NameServer("shop.example.net"), free_port()

    async def answered(here: Site) -> str:
        answer = await here.curl("http://far.example.com/")
        return answer.pod if answer.code == 200 else str(answer.code)

    allowed = replace(TRIAL, external_names=True)
    async with site(tmp_path, destinations=allowed, resolvers=(("127.0.0.1", port),)) as here:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: names, ("127.0.0.1", port))
        await here.pod(ONE)
        await here.pod(TWO)
        ports = [{"name": "http", "port": 80, "targetPort": here.pod_port}]
        for name, external in (("far", "shop.example.net"), ("gone", "no-such-host.example.net")):
            here.put(service(name, type="ExternalName", externalName=external, ports=ports))
        here.put(ingress("web", *(rule(f"{name}.example.com", "/", service=name) for name in ("far", "gone"))))
        await here.settled()
        for address in (ONE, TWO):
            names.address = address
            async with asyncio.timeout(60):
                while await answered(here) != address:  # noqa: ASYNC110  # of another process nobody is told
                    await asyncio.sleep(0.05)
        assert (await here.curl("http://gone.example.com/")).code == 503
        await here.pods("web", ONE)
        here.put(ingress("near", rule("near.example.com", "/")))
        await here.settled()
        assert (await here.curl("http://near.example.com/")).pod == ONE
        # Another name, and a Service that becomes one: HAProxy knows the resolver already.
        for name in ("gone", "web"):
            here.put(service(name, type="ExternalName", externalName="shop.example.net", ports=ports))
        await here.settled()
        async with asyncio.timeout(60):
            while await here.codes_of("gone", "near") != {"gone": 200, "near": 200}:  # noqa: ASYNC110  # of another process nobody is told
                await asyncio.sleep(0.05)
        assert (await here.curl("http://near.example.com/")).pod == TWO
        transport.close()


@pytest.mark.parametrize("host", ["a.example.com:8080", "a.example.com."])
@in_site()
async def test_a_host_header_may_have_a_port_or_the_dot_of_the_root(here: Site, host: str) -> None:
    await here.pods("web", ONE)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    assert (await here.curl("http://a.example.com/", "-H", f"Host: {host}")).code == 200
