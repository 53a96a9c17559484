"""Credentials of a running server: renewed for new connections, withdrawn, without a restart."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from tests.up.unit.cluster_here import Clock, Events
from tests.up.unit.up_here import up

from vipwire.errors import ConfigError
from vipwire.http_server.exchange import Exchange, Reply
from vipwire.http_server.server import Serving
from vipwire.kube.errors import ApiError
from vipwire_up.api.serving.accept import bind_all, plain_or_tls_opening
from vipwire_up.credentials.keys import Keys
from vipwire_up.credentials.revocation import Revoked, parse_revoked

NOW = datetime.now(UTC).replace(microsecond=0)  # noqa: TID251  # OpenSSL goes by it
NEW = "new"


class Served:
    """A server that says who comes."""

    def __init__(self, keys: Keys, port: int) -> None:
        self._keys, self.url = keys, f"https://127.0.0.1:{port}"

    async def who(self, *, role: str = "", token: str = "", folder: Path) -> tuple[int, str]:
        """Ask with the certificate that a role has at this moment, or a token."""
        trusting = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
        if role:
            trusting.load_cert_chain(folder / f"pki/{role}.crt", folder / f"pki/{role}.key")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(ssl=trusting)
        session = aiohttp.ClientSession(connector=connector)
        async with session, session.get(self.url, headers=headers) as answer:
            return answer.status, await answer.text()


class Naming:
    """Answers with the caller's name."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def __call__(self, exchange: Exchange) -> Reply:
        try:
            return Reply(self._keys.access.identify(exchange).name)
        except ApiError as error:
            return Reply(status=error.code)

    def refuse(self, status: HTTPStatus) -> Reply:
        return Reply(status=status)


@contextlib.asynccontextmanager
async def serving(folder: Path, clock: Callable[[], datetime]) -> AsyncIterator[tuple[Keys, Served]]:
    keys = Keys(folder, ["127.0.0.1"], clock)

    named = Serving(Naming(keys))
    (listener,) = await bind_all("127.0.0.1", 0)
    named.listen(listener, plain_or_tls_opening(keys.tls))
    served = Served(keys, named.ports[0])
    keys.write_kubeconfigs(served.url)
    try:
        yield keys, served
    finally:
        await named.close()


async def test_a_server_certificate_is_renewed_while_it_serves(tmp_path: Path) -> None:
    clock = Clock()
    clock.now = NOW - timedelta(days=29)
    async with serving(tmp_path, clock) as (keys, served):
        pem = ssl.get_server_certificate
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        before = await asyncio.to_thread(pem, address)
        await keys.renew_server_certificate()
        assert await asyncio.to_thread(pem, address) == before, "not before it is due"  # it is, at `now`
        clock.now = NOW
        await keys.renew_server_certificate()
        after = x509.load_pem_x509_certificate((await asyncio.to_thread(pem, address)).encode())
        assert after.not_valid_after_utc == NOW + timedelta(days=30)
        assert await served.who(role="view", folder=tmp_path) == (200, "viewer")


async def test_a_clock_that_was_wrong_at_the_start_is_mended_while_it_runs(tmp_path: Path) -> None:
    clock = Clock()
    clock.now = datetime(1970, 1, 1, tzinfo=UTC)
    async with serving(tmp_path, clock) as (keys, served):
        with pytest.raises(aiohttp.ClientError):
            await served.who(folder=tmp_path)
        clock.now = NOW
        await keys.renew_server_certificate()
        assert await served.who(role="admin", folder=tmp_path) == (200, "kubernetes-admin")


async def test_tokens_are_read_again(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda: NOW) as (keys, served):
        tokens = tmp_path / "tokens.csv"
        old = tokens.read_text().partition(",")[0]
        assert await served.who(token=old, folder=tmp_path) == (200, "kubernetes-admin")
        tokens.write_text(f'{NEW},me,1,"vipwire:view"\n')
        assert keys.read_credential_files()
        assert await served.who(token=old, folder=tmp_path) == (401, "")
        assert await served.who(token=NEW, folder=tmp_path) == (200, "me")
        tokens.write_text("broken\n")
        keys.read_credential_files()
        assert await served.who(token=NEW, folder=tmp_path) == (200, "me"), "what it said before holds"
        tokens.unlink()
        assert not keys.read_credential_files()
        assert await served.who(token=NEW, folder=tmp_path) == (200, "me")


@pytest.mark.attack
async def test_certificates_and_users_are_withdrawn(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda: NOW) as (keys, served):
        stolen = tmp_path / "stolen"
        (stolen / "pki").mkdir(parents=True)
        for name in ("ca.crt", "view.crt", "view.key"):
            (stolen / "pki" / name).write_bytes((tmp_path / "pki" / name).read_bytes())
        assert await served.who(role="view", folder=stolen) == (200, "viewer")
        serial = x509.load_pem_x509_certificate((stolen / "pki/view.crt").read_bytes()).serial_number
        (tmp_path / "revoked").write_text(f"# stolen\nserial {serial:X}\n")
        assert keys.read_credential_files()
        await keys.renew_server_certificate()
        assert await served.who(role="view", folder=stolen) == (401, "")
        assert await served.who(role="view", folder=tmp_path) == (200, "viewer"), "it has been made anew"
        (tmp_path / "revoked").write_text("user viewer\n")
        keys.read_credential_files()
        assert await served.who(role="view", folder=tmp_path) == (401, "")
        assert await served.who(role="node", folder=tmp_path) == (200, "system:kube-proxy")


@pytest.mark.attack
@pytest.mark.slow
async def test_open_watches_of_who_is_withdrawn_end(tmp_path: Path) -> None:
    tokens, maps = tmp_path / "tokens.csv", "/api/v1/namespaces/default/configmaps"

    async def ends(watch: aiohttp.ClientResponse) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            await watch.content.read()

    async with up(tmp_path) as here, contextlib.AsyncExitStack() as stack:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "pki/ca.crt"))
        trusting.load_cert_chain(tmp_path / "pki/view.crt", tmp_path / "pki/view.key")
        connector = aiohttp.TCPConnector(ssl=trusting)
        viewer = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        rows = tokens.read_text().splitlines()
        token = next(row for row in rows if ",viewer," in row).partition(",")[0]
        headers = {"Authorization": f"Bearer {token}"}
        meta = (await here.ask("GET", maps))[1]["metadata"]
        url = f"{here.url}{maps}?watch=1&resourceVersion={meta['resourceVersion']}"
        by_token = await stack.enter_async_context(here.session.get(url, headers=headers))
        by_certificate = await stack.enter_async_context(viewer.get(url))
        by_admin = await stack.enter_async_context(here.session.get(url))
        assert {by_token.status, by_certificate.status, by_admin.status} == {200}
        async with asyncio.timeout(20):
            tokens.write_text("\n".join(row for row in rows if ",viewer," not in row))
            await ends(by_token)
            assert (await here.ask("POST", maps, {"metadata": {"name": "a"}}))[0] == 201
            for going_on in (by_certificate, by_admin):
                assert await Events(going_on).names(1) == [("ADDED", "a")]
            (tmp_path / "revoked").write_text("user viewer\n")
            await ends(by_certificate)
            assert (await here.ask("POST", maps, {"metadata": {"name": "b"}}))[0] == 201
            assert await Events(by_admin).names(1) == [("ADDED", "b")]


def test_the_file_of_what_is_revoked() -> None:
    path = Path("revoked")
    assert parse_revoked(path, b"\n# x\nserial 0A:1f\nuser a b\n") == Revoked(frozenset({0xA1F}), frozenset({"a b"}))
    for wrong in (b"serial x", b"user", b"token a", b"serial", b"serial 1 2"):
        with pytest.raises(ConfigError, match="revoked: line 1: expected `serial HEX` or `user NAME`"):
            parse_revoked(path, wrong)
