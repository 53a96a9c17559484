"""Every way to reach an API server, each seen from the server's side of a real connection."""

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.apiserver import FakeApiServer, Seen
from tests.fakes.authority import Authority, authority
from tests.fakes.event_log import EventLog
from tests.fakes.kubeconfig import write_kubeconfig
from tests.fakes.proxy import FakeProxy

from vipwire.errors import VipwireError
from vipwire.http_client.client import reason_of
from vipwire.kube.access.access import Access, load_access
from vipwire.kube.access.connection import TRANSPORT_ERRORS, Connection
from vipwire.kube.client import ApiSource
from vipwire.kube.proxied import proxy_resources

pytestmark = pytest.mark.slow

Json = dict[str, Any]
PLUGIN = """
import json, os, pathlib, sys
runs = pathlib.Path(sys.argv[1])
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = json.loads(pathlib.Path(sys.argv[2]).read_text())
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def kubeconfig(folder: Path, server: str, user: Json | None = None, cluster: Json | None = None) -> Path:
    return write_kubeconfig(folder / "kubeconfig", server, user, cluster)


def secure(*, clients: bool = False, certificate: str = "server") -> FakeApiServer:
    return FakeApiServer(tls=authority().server_context(certificate, clients=clients))


Story = Callable[[FakeApiServer, Connection], Awaitable[None]]


def connected(server: FakeApiServer, make: Callable[[str], Access], story: Story | None = None) -> list[Seen]:
    """Talk to a server in the way that `make` says; return what the server saw."""

    async def run() -> list[Seen]:
        async with server, Connection(make(server.url), "test") as connection:
            if story is None:
                assert await ask(connection) == 200
            else:
                await story(server, connection)
        return server.seen

    return asyncio.run(run())


async def ask(connection: Connection) -> int:
    async with connection.request("GET", "/api/v1/services", timeout=60.0) as response:
        await response.read()
        return response.status


def refusal(server: FakeApiServer, make: Callable[[str], Access]) -> str:
    """Tell what is said about a connection that fails."""
    said: list[str] = []

    async def story(_: FakeApiServer, connection: Connection) -> None:
        with pytest.raises(TRANSPORT_ERRORS) as caught:
            await ask(connection)
        said.append(reason_of(caught.value))

    connected(server, make, story)
    return said[0]


def by_kubeconfig(
    folder: Path, user: Json | None = None, cluster: Json | None = None, environ: Mapping[str, str] | None = None
) -> Callable[[str], Access]:
    def make(url: str) -> Access:
        return load_access(kubeconfig(folder, url, user, cluster), environ=environ or {})

    return make


def trusted() -> Json:
    return {"certificate-authority-data": data(authority().text("ca.crt"))}


def test_a_client_certificate_out_of_files(tmp_path: Path) -> None:
    folder = authority().folder
    user = {"client-certificate": str(folder / "first.crt"), "client-key": str(folder / "first.key")}
    cluster = {"certificate-authority": str(folder / "ca.crt")}
    (seen,) = connected(secure(clients=True), by_kubeconfig(tmp_path, user, cluster))
    assert seen.client == "first"


def test_a_client_certificate_within_the_kubeconfig(tmp_path: Path) -> None:
    user = {
        "client-certificate-data": data(authority().text("first.crt")),
        "client-key-data": data(authority().text("first.key")),
    }
    (seen,) = connected(secure(clients=True), by_kubeconfig(tmp_path, user, trusted()))
    assert seen.client == "first"


def test_a_client_certificate_may_be_rotated_while_connected(tmp_path: Path) -> None:
    def install(name: str) -> None:
        for ending in ("crt", "key"):
            (tmp_path / f"client.{ending}").write_text(authority().text(f"{name}.{ending}"))

    async def story(_: FakeApiServer, connection: Connection) -> None:
        await ask(connection)
        await ask(connection)
        install("second")
        await ask(connection)

    install("first")
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    seen = connected(secure(clients=True), by_kubeconfig(tmp_path, user, trusted()), story)
    assert [request.client for request in seen] == ["first", "first", "second"]


def test_a_half_rotated_pair_is_an_error_of_that_request_only(tmp_path: Path) -> None:
    for ending in ("crt", "key"):
        (tmp_path / f"client.{ending}").write_text(authority().text(f"first.{ending}"))

    async def story(_: FakeApiServer, connection: Connection) -> None:
        (tmp_path / "client.crt").write_text(authority().text("second.crt"))
        with pytest.raises(VipwireError, match="client-certificate, client-key: not a pair"):
            await ask(connection)
        (tmp_path / "client.key").write_text(authority().text("second.key"))
        assert await ask(connection) == 200

    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    (seen,) = connected(secure(clients=True), by_kubeconfig(tmp_path, user, trusted()), story)
    assert seen.client == "second"


def test_tokens_and_passwords(tmp_path: Path) -> None:
    (seen,) = connected(FakeApiServer(token="t"), by_kubeconfig(tmp_path, {"token": "t"}))  # noqa: S106
    assert seen.headers["Authorization"] == "Bearer t"
    (seen,) = connected(FakeApiServer(), by_kubeconfig(tmp_path, {"username": "u", "password": "p"}))
    assert seen.headers["Authorization"] == "Basic dTpw"


def test_a_token_file_may_be_rotated_while_connected(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old\n")

    async def story(_: FakeApiServer, connection: Connection) -> None:
        await ask(connection)
        (tmp_path / "token").write_text("new\n")
        await ask(connection)
        (tmp_path / "token").write_text("")
        with pytest.raises(VipwireError, match=r"tokenFile: .*token is empty"):
            await ask(connection)

    seen = connected(FakeApiServer(), by_kubeconfig(tmp_path, {"tokenFile": "token"}), story)
    assert [request.headers["Authorization"] for request in seen] == ["Bearer old", "Bearer new"]


def plugin(folder: Path, status: Json, **more: Any) -> Json:
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "status").write_text(json.dumps(status))
    arguments = [str(folder / name) for name in ("plugin.py", "runs", "status")]
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"command": sys.executable, "args": arguments, "apiVersion": version, **more}}


def rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def test_a_plugins_token_is_kept_until_it_expires_or_is_refused(tmp_path: Path) -> None:
    def give(token: str, expires: float) -> None:
        status = {"token": token, "expirationTimestamp": rfc3339(expires)}
        (tmp_path / "status").write_text(json.dumps(status))

    async def story(server: FakeApiServer, connection: Connection) -> None:
        give("first", time.time() + 3600)
        await ask(connection)
        give("second", time.time() - 3600)
        await ask(connection)
        server.token = "revoked"  # noqa: S105 - the test's own
        assert await ask(connection) == 401
        server.token = ""
        await ask(connection)
        give("third", time.time() + 3600)
        await ask(connection)

    seen = connected(FakeApiServer(), by_kubeconfig(tmp_path, plugin(tmp_path, {})), story)
    tokens = [request.headers["Authorization"].removeprefix("Bearer ") for request in seen]
    assert tokens == ["first", "first", "first", "second", "third"]
    assert (tmp_path / "runs").read_text() == "xxx"


def test_a_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    status = {
        "clientCertificateData": authority().text("second.crt"),
        "clientKeyData": authority().text("second.key"),
    }
    (seen,) = connected(secure(clients=True), by_kubeconfig(tmp_path, plugin(tmp_path, status), trusted()))
    assert (seen.client, seen.headers.get("Authorization")) == ("second", None)


def through(server: FakeApiServer, make: Callable[[str, str], Access], **options: Any) -> FakeProxy:
    """Talk to a server called api.test by a proxy; `make` takes the server's and the proxy's URL."""
    proxy = FakeProxy(lambda: ("127.0.0.1", server.port), **options)

    async def run() -> None:
        async with server, proxy:
            scheme = server.url.partition(":")[0]
            async with Connection(make(f"{scheme}://api.test:6443", proxy.url), "test") as connection:
                assert await ask(connection) == 200

    asyncio.run(run())
    return proxy


def test_a_proxy_for_plain_http(tmp_path: Path) -> None:
    proxy = through(
        FakeApiServer(),
        lambda server, url: load_access(kubeconfig(tmp_path, server, None, {"proxy-url": url}), environ={}),
    )
    assert proxy.asked == ["GET http://api.test:6443/api/v1/services HTTP/1.1"]


def test_a_proxy_for_https_is_a_tunnel_and_sees_nothing(tmp_path: Path) -> None:
    server = secure(clients=True)
    user = {
        "client-certificate-data": data(authority().text("first.crt")),
        "client-key-data": data(authority().text("first.key")),
    }

    def make(url: str, proxy: str) -> Access:
        cluster = {"proxy-url": proxy.replace("http://", "http://me:secret@"), **trusted()}
        return load_access(kubeconfig(tmp_path, url, user, cluster), environ={})

    proxy = through(server, make)
    assert proxy.asked == ["CONNECT api.test:6443 HTTP/1.1"]
    assert proxy.authorizations == ["Proxy-Authorization: Basic bWU6c2VjcmV0"]
    assert [request.client for request in server.seen] == ["first"]


def test_the_name_that_is_checked_may_be_another_behind_a_proxy_too(tmp_path: Path) -> None:
    def make(url: str, proxy: str) -> Access:
        cluster = {"proxy-url": proxy, "tls-server-name": "other.test", **trusted()}
        return load_access(kubeconfig(tmp_path, url, None, cluster), environ={})

    assert through(secure(certificate="elsewhere"), make).asked == ["CONNECT api.test:6443 HTTP/1.1"]


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_the_proxy_of_the_environment(tmp_path: Path, name: str) -> None:
    proxy = through(
        secure(),
        lambda server, url: load_access(kubeconfig(tmp_path, server, None, trusted()), environ={name: url}),
    )
    assert len(proxy.asked) == 1


async def test_a_proxy_that_refuses_is_told_without_its_password(tmp_path: Path) -> None:
    proxy = FakeProxy(lambda: ("127.0.0.1", 1), refuses=True)
    said: list[str] = []
    async with proxy:
        cluster = {"proxy-url": proxy.url.replace("http://", "http://me:secret@"), **trusted()}
        access = load_access(kubeconfig(tmp_path, "https://api.test", None, cluster), environ={})
        async with Connection(access, "test") as connection:
            with pytest.raises(TRANSPORT_ERRORS) as caught:
                await ask(connection)
            said.append(reason_of(caught.value))
    assert said[0].startswith(f"the proxy {proxy.url}")
    assert "403" in said[0]
    assert "secret" not in said[0]


def test_a_server_of_another_authority_is_refused_and_the_field_named(tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    said = refusal(secure(), by_kubeconfig(tmp_path, None, {"certificate-authority": str(other.certificate)}))
    assert f"no authority in {tmp_path}/kubeconfig: cluster.certificate-authority has signed" in said
    said = refusal(
        secure(), by_kubeconfig(tmp_path, None, {"certificate-authority-data": data(other.text("other.crt"))})
    )
    assert "cluster.certificate-authority-data has signed" in said


def test_a_server_of_another_name_is_refused_and_the_field_named(tmp_path: Path) -> None:
    said = refusal(secure(certificate="elsewhere"), by_kubeconfig(tmp_path, None, trusted()))
    assert "for another name" in said
    assert "(see " in said
    assert "cluster.tls-server-name)" in said
    assert "127.0.0.1" in said


def test_an_expired_server_is_refused(tmp_path: Path) -> None:
    assert "has expired or is not valid yet: certificate has expired" in refusal(
        secure(certificate="expired"), by_kubeconfig(tmp_path, None, trusted())
    )


@pytest.mark.parametrize("certificate", ["elsewhere", "expired"])
def test_whoever_asks_for_it_trusts_anybody(tmp_path: Path, certificate: str) -> None:
    cluster = {"insecure-skip-tls-verify": True}
    assert len(connected(secure(certificate=certificate), by_kubeconfig(tmp_path, None, cluster))) == 1


def test_the_name_that_is_checked_may_be_another(tmp_path: Path) -> None:
    cluster = {"tls-server-name": "other.test", **trusted()}
    assert len(connected(secure(certificate="elsewhere"), by_kubeconfig(tmp_path, None, cluster))) == 1


def test_a_servers_own_certificate_may_stand_for_its_authority(tmp_path: Path) -> None:
    cluster = {"certificate-authority-data": data("# für uns\n" + authority().text("server.crt"))}
    assert len(connected(secure(), by_kubeconfig(tmp_path, None, cluster))) == 1


def test_a_rotated_authority_is_read_again_and_an_empty_one_trusts_nobody(tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    file = tmp_path / "ca.crt"
    file.write_text(other.text("other.crt"))

    async def story(_: FakeApiServer, connection: Connection) -> None:
        with pytest.raises(VipwireError, match="no authority in"):
            await ask(connection)
        file.write_text(other.text("other.crt") + authority().text("ca.crt"))
        assert await ask(connection) == 200
        file.write_text("")
        with pytest.raises(VipwireError, match=r"cluster\.certificate-authority: no certificate in PEM form"):
            await ask(connection)

    connected(secure(), by_kubeconfig(tmp_path, None, {"certificate-authority": "ca.crt"}), story)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_within_a_pod(tmp_path: Path, host: str) -> None:
    (tmp_path / "ca.crt").write_text(authority().text("ca.crt"))
    (tmp_path / "token").write_text("mounted")
    server = FakeApiServer(tls=authority().server_context(), token="mounted")  # noqa: S106 - the test's own
    await server.start(host)
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(server.port)}
    access = load_access(environ=environ, service_account=tmp_path)
    async with Connection(access, "test") as connection:
        assert await ask(connection) == 200
    await server.stop()
    assert len(server.seen) == 1


def test_the_master_alone_trusts_the_system_only() -> None:
    assert "--master alone relies on" in refusal(secure(), lambda url: load_access(None, url, environ={}))


async def test_a_refused_certificate_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(Authority(tmp_path, "other").text("other.crt"))
    server = secure()
    async with server:
        access = by_kubeconfig(tmp_path, None, {"certificate-authority": "ca.crt"})(server.url)
        log = EventLog()
        source = ApiSource(access, proxy_resources("node"), chance=log.chance)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(log))
            await log.until(lambda: all("no authority in" in health.error for health in source.health()))
            file.write_text(authority().text("ca.crt"))
            await log.until(lambda: all(health.synced for health in source.health()))
            task.cancel()


async def test_a_server_that_never_begins_to_answer_is_given_up() -> None:
    left = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with asyncio.timeout(60):
        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        access = load_access(None, url, environ={})
        async with server, Connection(access, "test", answer_timeout=0.05) as connection:
            with pytest.raises(VipwireError) as caught:
                await ask(connection)
        await left.wait()
    assert str(caught.value).endswith("did not answer in time")


def test_a_server_that_speaks_no_tls_is_an_error(tmp_path: Path) -> None:
    said = refusal(
        FakeApiServer(), lambda url: by_kubeconfig(tmp_path, None, trusted())(url.replace("http", "https"))
    )
    assert "SSL" in said


def test_an_encrypted_key_is_not_asked_about(tmp_path: Path) -> None:
    user = {
        "client-certificate-data": data(authority().text("first.crt")),
        "client-key-data": data(encrypted(authority().text("first.key"))),
    }
    with pytest.raises(VipwireError, match="client-certificate, client-key: not a pair in PEM form"):
        by_kubeconfig(tmp_path, user, trusted())("https://127.0.0.1:1")


def encrypted(key: str) -> str:
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret"]
    return subprocess.run(command, input=key, capture_output=True, text=True, check=True).stdout
