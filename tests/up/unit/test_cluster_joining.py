"""Joining a cluster: tokens, the authority's hash, certificates for machines, and what a machine may write."""

import dataclasses
import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.up.unit.cluster_here import Here, SentBy, in_cluster
from tests.up.unit.up_here import Up, up

from vipwire.errors import ConfigError, VipwireError
from vipwire.kube.access.access import Access, load_access
from vipwire.kube.access.tls import ClientFiles
from vipwire.kube.errors import ApiError
from vipwire_up.api.admission import Admission
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.small_kinds import LEASES, SECRETS
from vipwire_up.api.serving.authorization import Role, User
from vipwire_up.controllers.node_restriction import refuse_writes_of_other_nodes
from vipwire_up.credentials.machine_records import NAMESPACE
from vipwire_up.joining import enrolment
from vipwire_up.joining import join as joining
from vipwire_up.joining.manage import (
    create_token,
    delete_token,
    list_certificates,
    list_tokens,
    remove_machine,
    report_departure,
)
from vipwire_up.joining.membership import Folder, Member, access_by_token, read_server
from vipwire_up.joining.pinned import read_certificate
from vipwire_up.joining.tokens import (
    Token,
    build_token_secret,
    delete_expired,
    is_valid_token,
    parse_token,
    read_token_secret,
)
from vipwire_up.nodes.heartbeat import Heartbeat
from vipwire_up.nodes.node import NODE_LEASES
from vipwire_up.nodes.objects import LocalObjects, Objects, RemoteObjects
from vipwire_up.store.store import Store

pytestmark = pytest.mark.slow

INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
DEFAULT_SECRETS = "/api/v1/namespaces/default/secrets"
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TOKEN = Token("abcdef", "0123456789abcdef", NOW + dt.timedelta(hours=1))


@pytest.mark.parametrize("text", ["abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef0123456789abcdef", ""])
def test_what_is_no_token_is_none(text: str) -> None:
    assert parse_token(text) is None


def test_a_tokens_secret_is_read_as_it_was_written() -> None:
    assert read_token_secret(build_token_secret(TOKEN)) == TOKEN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expiration", "bm9uZQ=="),
        ("expiration", "MjAyNi0wMS0wMVQwMDowMDowMA=="),
        ("token-id", "eHh4eHh4"),
        ("token-secret", "!"),
    ],
)
def test_a_secret_that_is_odd_is_no_token(field: str, value: str) -> None:
    secret = build_token_secret(TOKEN)
    secret["data"][field] = value
    assert read_token_secret(secret) is None


def test_a_token_is_good_for_its_time_and_its_use_only() -> None:
    assert is_valid_token(TOKEN, TOKEN.secret, NOW)
    assert not is_valid_token(TOKEN, TOKEN.secret, NOW + dt.timedelta(hours=1))
    assert not is_valid_token(TOKEN, TOKEN.secret[::-1], NOW)
    assert not is_valid_token(None, TOKEN.secret, NOW)
    secret = build_token_secret(TOKEN)
    secret["data"]["usage-bootstrap-authentication"] = "bm8="
    assert not is_valid_token(read_token_secret(secret), TOKEN.secret, NOW)


@pytest.mark.parametrize("text", ["http://10.0.0.1:6443", "10.0.0.1:99999", "https://", "https://10.0.0.1/path"])
def test_what_is_no_servers_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of an API server"):
        read_server(text)


def test_a_servers_url_may_leave_out_what_is_usual() -> None:
    assert [read_server(text) for text in ("10.0.0.1", "https://[fd00::1]")] == [
        "https://10.0.0.1:6443",
        "https://[fd00::1]:6443",
    ]


def authority(folder: Folder) -> x509.Certificate:
    return read_certificate(folder.authority.read_text())


def admin(folder: Path) -> Access:
    return load_access(folder / "admin.kubeconfig", environ={})


async def words_for(here: Up, folder: Path, *, servers: bool = False) -> tuple[str, str]:
    """Make a token; give it and the hash that is to be pinned."""
    words = (await create_token(admin(folder), 60, servers=servers, description="a test's")).split()
    assert here.url
    return words[words.index("--token") + 1], words[words.index("--ca-hash") + 1]


async def serves(folder: Folder, url: str, node: str) -> None:
    """Declare the Node Ready, as `vipwire join` does while it runs: then ingress:NAME counts."""
    async with RemoteObjects(folder.access_to(url), "test") as objects:
        await Heartbeat(objects, node, lambda: ([], {}), lambda: dt.datetime.now(dt.UTC)).renew_once()  # noqa: TID251  # a machine's


async def test_a_machine_joins_with_a_token_and_is_itself_from_then_on(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        folder = Folder(tmp_path / "there")
        member = await joining.join_cluster(folder, here.url, token, pinned, "n2")
        assert folder.read_member() == member == Member("n2", (here.url,))
        assert [path for path in folder.path.rglob("*") if path.is_file() and path.stat().st_mode & 0o077] == []
        async with RemoteObjects(folder.access_to(here.url), "test") as objects:
            assert await objects.read(NODES, "", "n2") is not None
            with pytest.raises(ApiError, match='User "system:node:n2" cannot write it'):
                await objects.create(NODES, "", {"metadata": {"name": "n3"}})
            with pytest.raises(ApiError, match="forbidden"):
                await objects.list(SECRETS)
        before = folder.node.certificate.read_bytes()
        await joining.request_certificate(folder, folder.node, folder.access_to(here.url), "n2")
        assert folder.node.certificate.read_bytes() != before
        with pytest.raises(VipwireError, match='cannot get the certificate of Node "n3"'):
            await joining.request_certificate(folder, folder.node, folder.access_to(here.url), "n3")
        await report_departure(folder, member)
        assert (await here.ask("GET", "/api/v1/nodes/n2"))[0] == 404


async def test_a_machine_has_another_kubeconfig_for_its_ingress_controller(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        folder = Folder(tmp_path / "there")
        await joining.join_cluster(folder, here.url, token, pinned, "n2")
        await serves(folder, here.url, "n2")
        folder.write_kubeconfigs(here.url)
        assert folder.relay_port() == int(here.url.rpartition(":")[2])
        backend = {"service": {"name": "web", "port": {"number": 80}}}
        spec = {"tls": [{"secretName": "cert"}], "defaultBackend": backend}
        assert (await here.ask("POST", INGRESSES, {"metadata": {"name": "site"}, "spec": spec}))[0] == 201
        for name in ("cert", "other"):
            assert (await here.ask("POST", DEFAULT_SECRETS, {"metadata": {"name": name}}))[0] == 201
        async with RemoteObjects(load_access(folder.ingress.kubeconfig), "test") as objects:
            assert [each["metadata"]["name"] for each in await objects.list(SECRETS)] == ["cert"]
            with pytest.raises(ApiError, match='User "ingress:n2" cannot list resource "nodes"'):
                await objects.list(NODES)
        with pytest.raises(VipwireError, match='cannot get the certificate of Node "n3"'):
            await joining.request_certificate(folder, folder.ingress, folder.access_to(here.url), "n3")
        with pytest.raises(VipwireError, match='cannot get the certificate of Node "n2"'):
            await joining.request_certificate(
                folder, folder.ingress, access_by_token(here.url, token, authority(folder)), "n2"
            )


async def refused(folder: Folder, url: str) -> list[int]:
    """Ask with each certificate of a machine; give the codes of those that are refused."""
    found = []
    for part in folder.parts:
        access = dataclasses.replace(
            folder.access_to(url), certificate=ClientFiles(part.certificate, part.key, "there")
        )
        async with RemoteObjects(access, "test") as objects:
            try:
                await objects.list(SERVICES)
            except ApiError as error:
                found.append(error.code)
    return found


@pytest.mark.attack
@pytest.mark.parametrize("by_admin", [False, True])
async def test_who_has_left_is_refused_until_it_joins_again(tmp_path: Path, *, by_admin: bool) -> None:
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        folder, kept = Folder(tmp_path / "there"), Folder(tmp_path / "kept")
        member = await joining.join_cluster(folder, here.url, token, pinned, "n2")
        await serves(folder, here.url, "n2")
        shutil.copytree(folder.path, kept.path)
        other = Folder(tmp_path / "other")
        await joining.join_cluster(other, here.url, token, pinned, "n3")
        await serves(other, here.url, "n3")
        await (remove_machine(admin(tmp_path / "up"), "n2") if by_admin else report_departure(folder, member))
        assert await refused(kept, here.url) == [401, 401]
        assert await refused(other, here.url) == []
        folder.delete_files()
        await joining.join_cluster(folder, here.url, token, pinned, "n2")
        await serves(folder, here.url, "n2")
        assert await refused(folder, here.url) == []
        assert await refused(kept, here.url) == [401, 401]
    async with up(tmp_path / "up") as here:  # and after a restart
        assert await refused(kept, here.url) == [401, 401]
        assert await refused(folder, here.url) == []


@pytest.mark.attack
async def test_a_machine_withdraws_its_own_certificates_only(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        folders = [Folder(tmp_path / name) for name in ("n2", "n3")]
        for folder in folders:
            await joining.join_cluster(folder, here.url, token, pinned, folder.path.name)
            await serves(folder, here.url, folder.path.name)
        path, strange = "/vipwire.io/v1/departures", folders[1].read_certificates()
        async with RemoteObjects(folders[0].access_to(here.url), "test") as objects:
            await objects.send_request("POST", path, {"node": "n3", "certificates": [*strange, "none", 7]})
        assert [await refused(folder, here.url) for folder in folders] == [[401, 401], []]
        async with RemoteObjects(load_access(tmp_path / "up/view.kubeconfig"), "test") as objects:
            with pytest.raises(ApiError, match="cannot remove a machine: the user is not a machine"):
                await objects.send_request("POST", path, {"node": "n3"})
        odd_ones: tuple[Any, ...] = ({}, {"node": "N_3"}, [])
        for odd in odd_ones:
            assert (await here.ask("POST", path, odd))[0] == 400
        assert (await refused(folders[1], here.url)) == []


@pytest.mark.attack
async def test_a_certificate_that_is_not_noted_is_refused_too_when_its_machine_leaves(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        folder = Folder(tmp_path / "there")
        member = await joining.join_cluster(folder, here.url, token, pinned, "n2")
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/vipwire-machine-n2"
        assert (await here.ask("DELETE", path))[0] == 200  # as if an earlier version had signed them
        await report_departure(folder, member)
        assert await refused(folder, here.url) == [401, 401]


async def test_who_joins_under_the_name_of_an_earlier_machine_takes_its_place(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        folders = [Folder(tmp_path / name) for name in ("there", "replaced")]
        for folder in folders:  # the Node is not Ready: no machine runs
            await joining.join_cluster(folder, here.url, token, pinned, "n2")
        await serves(folders[1], here.url, "n2")
        assert await refused(folders[0], here.url) == [401, 401]
        assert await refused(folders[1], here.url) == []
        with pytest.raises(VipwireError, match="or another machine joined under its name"):
            await joining.request_certificate(folders[0], folders[0].node, folders[0].access_to(here.url), "n2")


@pytest.mark.attack
async def test_a_token_is_good_for_so_many_machines_and_a_machine_has_so_many_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "MOST_MACHINES", 2)
    monkeypatch.setattr(enrolment, "MOST_CERTIFICATES", 4)
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        other, _ = await words_for(here, tmp_path / "up")
        for name in ("n2", "n3"):
            member = await joining.join_cluster(Folder(tmp_path / name), here.url, token, pinned, name)
        await report_departure(Folder(tmp_path / "n3"), member)  # it counts on
        with pytest.raises(VipwireError, match="2 machines have joined with this token: create another token"):
            await joining.join_cluster(Folder(tmp_path / "n4"), here.url, token, pinned, "n4")
        assert (await here.ask("GET", "/api/v1/nodes/n4"))[0] == 404
        await joining.join_cluster(Folder(tmp_path / "n4"), here.url, other, pinned, "n4")
        folder = Folder(tmp_path / "n2")
        for _ in range(2):
            await joining.request_certificate(folder, folder.node, folder.access_to(here.url), "n2")
        for part in folder.parts:
            with pytest.raises(VipwireError, match='Node "n2" has 4 certificates that have not expired'):
                await joining.request_certificate(folder, part, folder.access_to(here.url), "n2")
        assert len([line for line in await list_certificates(admin(tmp_path / "up")) if ":n2 " in line]) == 4


@pytest.mark.attack
async def test_who_may_not_join_is_told_why(tmp_path: Path) -> None:
    async with up(tmp_path / "up", node="n1") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        folder = Folder(tmp_path / "there")
        for wrong, hashed, node, why in (
            (token, f"sha256:{'0' * 64}", "n2", ", not sha256:"),
            ("abcdef.0123456789abcdef", pinned, "n2", "rejects the token"),
            (token, pinned, "n1", "a machine is Ready as Node n1"),
            (token, pinned, "N_2", "where NAME can name a Node"),
        ):
            with pytest.raises(VipwireError, match=why):
                await joining.join_cluster(folder, here.url, wrong, hashed, node)
        with pytest.raises(VipwireError, match="only a token made with --server can"):
            await joining.fetch_authority_key(folder, here.url, token, pinned)
        assert folder.read_member() is None
        listed = list(await list_tokens(admin(tmp_path / "up")))
        assert [line.split()[0] for line in listed] == ["ID", token[:6]]
        assert token[7:] not in "".join(listed)
        await delete_token(admin(tmp_path / "up"), token)
        with pytest.raises(VipwireError, match="rejects the token"):
            await joining.join_cluster(folder, here.url, token, pinned, "n2")


async def test_a_server_to_be_gets_the_authority_with_its_key(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up", servers=True)
        await joining.fetch_authority_key(Folder(tmp_path / "there"), here.url, token, pinned)
        for name in ("ca.crt", "ca.key"):
            assert (tmp_path / "there/pki" / name).read_bytes() == (tmp_path / "up/pki" / name).read_bytes()
        assert (tmp_path / "there/pki/ca.key").stat().st_mode & 0o077 == 0
        assert (tmp_path / "there/server-id").exists()  # it takes an empty etcd for one that has lost its objects


@pytest.mark.attack
async def test_nobody_but_a_machine_to_be_gets_a_certificate(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        folder = Folder(tmp_path / "there")
        folder.prepare("")
        body = {"request": folder.build_signing_request(folder.node, "n2").public_bytes(Encoding.PEM).decode()}
        code, answer = await here.ask("POST", "/vipwire.io/v1/certificates", body)  # an admin's own token
        assert (code, answer["reason"]) == (403, "Forbidden")
        token, pinned = await words_for(here, tmp_path / "up")
        access = access_by_token(here.url, token, await joining.find_authority(here.url, pinned))
        odd_ones: tuple[Any, ...] = ({}, {"request": 1}, {"request": "none"}, [])
        async with RemoteObjects(access, "test") as objects:
            for odd in odd_ones:
                with pytest.raises(ApiError) as caught:
                    await objects.send_request("POST", "/vipwire.io/v1/certificates", odd)
                assert caught.value.code == 400
        assert (await here.ask("GET", "/vipwire.io/v1/nothing"))[0] == 404


def restricted(_store: Store) -> tuple[Admission, ...]:
    return (refuse_writes_of_other_nodes,)


HOOK = SentBy(refuse_writes_of_other_nodes)


@pytest.mark.attack
@in_cluster(make_hooks=lambda _: (HOOK,))
async def test_a_machine_writes_its_own_lease_only_and_only_admins_delete_others_nodes(here: Here) -> None:
    async def refusals(objects: Objects, caller: User) -> list[str]:
        found = []
        for name in ("n1", "n2"):
            await objects.create(NODES, "", {"metadata": {"name": name}})
            lease = objects.create(LEASES, NODE_LEASES, {"metadata": {"name": name}})
            for step in (lease, objects.delete(NODES, "", name)):
                HOOK.caller = caller
                try:
                    await step
                except ApiError:
                    found.append(name)
                HOOK.caller = None
            await objects.delete(LEASES, NODE_LEASES, name)
            await objects.delete(NODES, "", name)
        return found

    objects = LocalObjects(here.registry, "test")
    assert (await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": NODE_LEASES}}))[0] == 201
    machine, proxy = User("system:node:n1", (Role.NODE.value,)), User("system:kube-proxy", (Role.NODE.value,))
    assert await refusals(objects, machine) == ["n2", "n2"]
    assert await refusals(objects, proxy) == ["n1", "n2"]  # their deletion
    assert await refusals(objects, User("admin", (Role.ADMIN.value,))) == []


@pytest.mark.parametrize(
    ("namespace", "name", "allowed"),
    [
        ("kube-system", "vipwire-ingress", True),
        ("kube-system", "vipwire-address-10-0-0-64", False),
        ("kube-system", "vipwire-announcer-n1", False),
        ("kube-system", "vipwire-controllers", False),
        ("kube-system", "vipwire-server-n1", False),
        (NODE_LEASES, "n1", False),
    ],
)
@in_cluster(make_hooks=restricted)
async def test_an_ingress_controller_writes_no_lease_of_machines(
    here: Here, namespace: str, name: str, *, allowed: bool
) -> None:
    assert (await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}))[0] == 201
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    code, _ = await here.send("POST", path, {"metadata": {"name": name}}, user="ingress")
    assert code == (201 if allowed else 403)
    code, _ = await here.send("POST", path, {"metadata": {"name": name}})
    assert code == (409 if allowed else 201)  # an admin may


@in_cluster()
async def test_tokens_whose_time_is_over_are_deleted(here: Here) -> None:
    code, _ = await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    assert code in (201, 409)
    objects = LocalObjects(here.registry, "test")
    await objects.create(SECRETS, NAMESPACE, build_token_secret(TOKEN))
    await objects.create(SECRETS, NAMESPACE, {"metadata": {"name": "bootstrap-token-others"}})
    for now, left in ((NOW, 2), (NOW + dt.timedelta(days=1), 1)):
        await delete_expired(here.registry, now)
        assert len(await objects.list(SECRETS, NAMESPACE)) == left
