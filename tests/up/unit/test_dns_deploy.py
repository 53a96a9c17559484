"""deploy/dns: the Service leads to the Pods, the flags are taken, and the role allows what is asked and no more."""

import asyncio
from typing import Any

import yaml
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.apistore import ApiStore
from tests.fakes.objects import service, slice_of
from tests.project.deployed import DEPLOY, one
from tests.project.test_deploy_rbac import right_of

from vipwire.kube.access.access import load_access
from vipwire.kube.client import ApiSource
from vipwire_up.dns.cli import dns
from vipwire_up.dns.objects import RESOURCES, DnsEvent
from vipwire_up.dns.run import read_settings
from vipwire_up.dns.settings import RESOLV_CONF
from vipwire_up.dns.zone import Zone

FOLDER = DEPLOY / "dns"
PLURALS = ("services", "endpointslices")


def objects() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [each for name in kustomization["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())]


def pod() -> dict[str, Any]:
    template: dict[str, Any] = one(objects(), "Deployment")["spec"]["template"]
    return template


def test_the_service_leads_to_the_pods() -> None:
    service_, (container,) = one(objects(), "Service"), pod()["spec"]["containers"]
    assert service_["spec"]["selector"].items() <= pod()["metadata"]["labels"].items()
    deployment = one(objects(), "Deployment")
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod()["metadata"]["labels"].items()
    ports = {(port["port"], port["protocol"]) for port in service_["spec"]["ports"]}
    assert ports == {(port["containerPort"], port["protocol"]) for port in container["ports"]}
    assert pod()["spec"]["dnsPolicy"] == "Default", "or it would ask itself"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    first = {each["name"]: each["value"] for each in pod()["spec"]["securityContext"]["sysctls"]}
    assert first["net.ipv4.ip_unprivileged_port_start"] == "0", "or a user without capabilities cannot bind port 53"


def test_the_flags_are_taken() -> None:
    (container,) = pod()["spec"]["containers"]
    assert container["command"] == ["vipwire", "dns"]
    arguments = [text.replace("$(POD_IP)", "10.244.0.3") for text in container["args"]]
    with dns.make_context("dns", arguments) as context:
        settings = read_settings(context.params)
    assert (settings.port, settings.addresses, settings.http) == (53, ("10.244.0.3",), "10.244.0.3:9153")
    assert settings.advertised == (one(objects(), "Service")["spec"]["clusterIP"],)
    assert (settings.upstream, settings.resolv_conf) == ((), RESOLV_CONF)


def test_the_role_allows_what_is_asked_for_and_nothing_else() -> None:
    store = ApiStore()
    store.put("services", service(1))
    store.put("services", service(2, clusterIP="None", clusterIPs=["None"]))
    store.put("endpointslices", slice_of(2))
    zone = Zone("cluster.local")

    def take(told: DnsEvent) -> None:
        assert not zone.apply(told)

    async def run() -> set[tuple[str, str, str]]:
        async with FakeApiServer(store) as server, asyncio.timeout(60):
            source = ApiSource(load_access(None, server.url, environ={}), RESOURCES)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(source.run(take))
                await server.until(lambda: all(server.watching(plural) for plural in PLURALS))
                task.cancel()
            return {right_of(seen) for seen in server.seen}

    role = one(objects(), "ClusterRole")
    allowed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asyncio.run(run()) == allowed
    assert zone.synced
    assert zone.sizes["services"] == 2
