"""`vipwire expose`: what it makes of its line, and at a running API server."""

from ipaddress import ip_network
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.up.unit.cluster_here import SERVICES, USERS
from tests.up.unit.controllers_here import PODS, SLICES, allocating_cluster, items, listed_names

from vipwire.cli.main import main
from vipwire.errors import ConfigError, VipwireError
from vipwire.kube.access.access import load_access
from vipwire_up.controllers.balancers import Balancers
from vipwire_up.controllers.garbage_collector import GarbageCollector
from vipwire_up.expose import (
    Target,
    Wanted,
    build_objects,
    describe_addresses,
    expose_service,
    find_access,
    read_targets,
)

pytestmark = pytest.mark.slow

TWO = (Target("192.0.2.5", 8080), Target("192.0.2.6", 8080))


def test_targets_are_read() -> None:
    assert read_targets("192.0.2.5:8080, [fd00::5]:81") == (Target("192.0.2.5", 8080), Target("fd00::5", 81))


@pytest.mark.parametrize("text", ["", "192.0.2.5", "192.0.2.5:0", "192.0.2.5:http", "fd00::5:80", "127.0.0.1:80"])
def test_wrong_targets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--to: "):
        read_targets(text)


def test_wrong_names_and_checks_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a name for a Service"):
        list(build_objects(Wanted("Web", "default", 80, TWO)))
    with pytest.raises(ConfigError, match="--check: 'ping' is not known"):
        list(build_objects(Wanted("web", "default", 80, TWO, check="ping")))


def kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    value = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(value))
    return path


async def test_one_line_makes_a_service_and_another_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(USERS, "nobody", USERS["admin"])  # a client without the header of tests
    async with allocating_cluster(tmp_path) as here:
        config = load_access(kubeconfig(tmp_path, here.url))
        made = await expose_service(config, Wanted("web", "default", 80, TWO))
        assert [line.partition(": ")[2] for line in describe_addresses(made)] == [f"{made['spec']['clusterIP']}:80"]
        (found,) = await items(here, SLICES)
        assert [each["addresses"][0] for each in found["endpoints"]] == ["192.0.2.5", "192.0.2.6"]
        revision = here.store.revision
        await expose_service(config, Wanted("web", "default", 80, TWO))
        assert here.store.revision == revision
        await expose_service(config, Wanted("web", "default", 80, TWO[:1], check="http:/healthz"))
        assert (await listed_names(here, SLICES), await listed_names(here, PODS)) == ([], ["web-1"])
        assert (await listed_names(here, SERVICES)) == ["web"]
        await here.send("DELETE", f"{SERVICES}/web")
        await GarbageCollector(here.registry).step()
        assert await listed_names(here, PODS) == []
        with pytest.raises(VipwireError, match='namespaces "none" not found'):
            await expose_service(config, Wanted("web", "none", 80, TWO))


async def test_a_target_on_a_machine_of_the_cluster_names_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(USERS, "nobody", USERS["admin"])  # a client without the header of tests
    async with allocating_cluster(tmp_path) as here:
        config, wanted = load_access(kubeconfig(tmp_path, here.url)), Wanted("web", "default", 80, TWO, check="tcp")
        await expose_service(config, wanted)
        assert [each["spec"].get("nodeName", "") for each in await items(here, PODS)] == ["", ""]
        listed = {"vipwire.io/addresses": "198.51.100.9,192.0.2.5"}
        await here.post("/api/v1/nodes", {"metadata": {"name": "n1", "annotations": listed}})
        status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.6"}]}
        await here.post("/api/v1/nodes", {"metadata": {"name": "n2"}, "status": status})
        await expose_service(config, wanted)
        assert [each["spec"].get("nodeName", "") for each in await items(here, PODS)] == ["n1", "n2"]
        await expose_service(config, Wanted("web", "default", 80, TWO, check="http:/up"))
        probes = [each["spec"]["containers"][0]["readinessProbe"] for each in await items(here, PODS)]
        assert [each["httpGet"]["path"] for each in probes] == ["/up", "/up"]
        await expose_service(config, Wanted("web", "default", 80, TWO))
        (found,) = await items(here, SLICES)
        assert [each.get("nodeName", "") for each in found["endpoints"]] == ["n1", "n2"]


async def test_clients_may_be_kept_to_the_machine_that_they_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(USERS, "nobody", USERS["admin"])
    async with allocating_cluster(tmp_path) as here:
        config = load_access(kubeconfig(tmp_path, here.url))
        wanted = Wanted("web", "default", 80, TWO, "LoadBalancer", check="tcp", check_seconds=1, policy="Local")
        with pytest.raises(ConfigError, match="Local: none of --to is an address of a machine"):
            await expose_service(config, wanted)
        listed = {"vipwire.io/addresses": "192.0.2.5,192.0.2.6"}
        await here.post("/api/v1/nodes", {"metadata": {"name": "n1", "annotations": listed}})
        made = await expose_service(config, wanted)
        assert made["spec"]["externalTrafficPolicy"] == "Local"
        probes = [each["spec"]["containers"][0]["readinessProbe"] for each in await items(here, PODS)]
        assert [each["periodSeconds"] for each in probes] == [1, 1]
        made = await expose_service(config, Wanted("web", "default", 80, TWO, "LoadBalancer", check="tcp"))
        assert made["spec"]["externalTrafficPolicy"] == "Cluster"


async def test_the_address_of_a_load_balancer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(USERS, "nobody", USERS["admin"])
    async with allocating_cluster(tmp_path) as here:
        config = load_access(kubeconfig(tmp_path, here.url))
        wanted = Wanted("web", "default", 80, TWO, type="LoadBalancer")
        alone = list(describe_addresses(await expose_service(config, wanted)))
        assert alone[-1].startswith("default/web: no load balancer has assigned an address yet")
        await Balancers(here.registry, [ip_network("198.51.100.7/32")]).step()
        assert list(describe_addresses(await expose_service(config, wanted))) == [
            alone[0],
            "default/web: 198.51.100.7:80",
            alone[1],
        ]


def test_the_api_server_is_the_one_that_was_said_or_kubectls_or_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("own", "variable", "home/.kube"):
        (tmp_path / folder).mkdir(parents=True)
    own = kubeconfig(tmp_path / "own", "http://192.0.2.1").rename(tmp_path / "own/admin.kubeconfig")
    named = kubeconfig(tmp_path / "variable", "http://192.0.2.2")
    at_home = kubeconfig(tmp_path / "home/.kube", "http://192.0.2.3").rename(tmp_path / "home/.kube/config")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VIPWIRE_DATA_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("KUBECONFIG", str(named))
    notes: list[str] = []
    assert find_access(own, notes.append).server == "http://192.0.2.1"
    assert find_access(None, notes.append).server == "http://192.0.2.2"
    monkeypatch.delenv("KUBECONFIG")
    assert find_access(None, notes.append).server == "http://192.0.2.3"
    assert notes == [
        f"note: asking http://192.0.2.2, which {named} names ($KUBECONFIG)",
        f"note: asking http://192.0.2.3, which {at_home} names (as kubectl does)",
    ]
    at_home.unlink()
    assert find_access(None, notes.append).server == "http://192.0.2.1"
    assert notes[2:] == [f"note: asking http://192.0.2.1, which {own} names (of this machine)"]
    own.unlink()
    with pytest.raises(ConfigError, match=r"no API server: .*no ~/\.kube/config, .*\(is `vipwire up` running"):
        find_access(None, notes.append)


def test_a_data_directory_that_is_said_counts_before_kubectls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://192.0.2.2")))
    line = ["expose", "web", "--port=80", "--to=192.0.2.5:80"]
    for said, environ in (([f"--data-dir={tmp_path}"], {}), ([], {"VIPWIRE_DATA_DIR": str(tmp_path)})):
        result = CliRunner().invoke(main, [*line, *said], env=environ)
        assert result.exit_code == 1
        assert f"cannot read {tmp_path}/admin.kubeconfig" in result.output
