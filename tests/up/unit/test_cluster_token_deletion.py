"""Certificates end with the token of their machine's join, and with its Node: by the commands, and on the wire."""

import contextlib
import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.serialization import Encoding
from tests.fakes.waiting import until
from tests.up.unit.cluster_process import PATIENCE, VIPWIRE, up

from vipwire.cli.main import main
from vipwire_up.joining.membership import Folder

pytestmark = [pytest.mark.attack, pytest.mark.slow]
SERVICES = "/api/v1/services"
NODES = "/api/v1/nodes"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
CERTIFICATES = "/vipwire.io/v1/certificates"
USERS = ("node", "ingress")
"""A machine's two certificates: of its proxy and `vipwire dns`, and of its Ingress or Gateway controller."""


@dataclass
class Cluster:
    """A cluster that runs, and the tokens that were made."""

    folder: Path

    @property
    def port(self) -> int:
        found = re.search(r"server: https://127\.0\.0\.1:(\d+)", (self.folder / "admin.kubeconfig").read_text())
        assert found
        return int(found[1])

    def vipwire(self, *words: str) -> str:
        """Run a command as an admin, which must succeed."""
        done = self.tried(*words)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def tried(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--data-dir", str(self.folder)])

    def token(self, *words: str) -> tuple[str, str]:
        """Make a token; give it with the hash of the authority."""
        found = re.search(r"--token (\S+) --ca-hash (\S+)", self.vipwire("token", "create", *words))
        assert found
        return found[1], found[2]

    def connection(self, pair: Path | None) -> http.client.HTTPSConnection:
        """Connect, with a client's certificate and key: PAIR.crt, PAIR.key."""
        context = ssl.create_default_context(cafile=self.folder / "pki/ca.crt")
        if pair is not None:
            context.load_cert_chain(pair.with_suffix(".crt"), pair.with_suffix(".key"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=context)

    def ask(
        self,
        pair: Path | None,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        **more: str,
    ) -> tuple[int, Any]:
        connection = self.connection(pair)
        sent = None if body is None else json.dumps(body)
        with contextlib.closing(connection):
            connection.request(method, path, sent, {"Content-Type": kind or "application/json"} | more)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def admin(self, method: str, path: str, body: Any = None, **more: str) -> tuple[int, Any]:
        return self.ask(self.folder / "pki/admin", method, path, body, **more)

    def codes(self, folder: Path) -> list[int]:
        """Read Services with each of a machine's certificates."""
        return [self.ask(folder / "pki" / user, "GET", SERVICES)[0] for user in USERS]

    def await_codes(self, folder: Path, wanted: list[int]) -> None:
        until(lambda: self.codes(folder) == wanted, lambda: self.codes(folder))

    def renewed(self, folder: Path, user: str) -> int:
        """Ask for one more certificate as the machine."""
        return self.ask(folder / "pki/node", "POST", CERTIFICATES, {"request": request(folder, user)})[0]

    def certificates(self) -> dict[str, tuple[str, str]]:
        """List the certificates by their users: of which token, and their state. The newest counts."""
        lines = [line.split(None, 4) for line in self.vipwire("token", "certificates").splitlines()]
        assert lines[0] == ["SERIAL", "EXPIRES", "TOKEN", "USER", "STATE"]
        return {user: (token, state) for _, _, token, user, state in lines[1:]}


def request(folder: Path, user: str, node: str = "") -> str:
    """Write a request for a certificate of a machine's user."""
    found = Folder(folder)
    part = found.node if user == "node" else found.ingress
    return found.build_signing_request(part, node or folder.name).public_bytes(Encoding.PEM).decode()


@contextlib.contextmanager
def machine(cluster: Cluster, folder: Path, token: str, pinned: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `vipwire join`, as the Node of its folder's name."""
    command = [*VIPWIRE, "join", f"https://127.0.0.1:{cluster.port}", "--token", token, "--ca-hash", pinned]
    command += ["--no-proxy", "--data-dir", str(folder), "--node-name", folder.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith(f"joined as Node {folder.name}")
            cluster.await_codes(folder, [200, 200])  # it is Ready
            yield process
        finally:
            process.terminate()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with up(tmp_path / "up", "--node-name", "n1"):
        yield Cluster(tmp_path / "up")


def test_the_deletion_of_a_token_ends_its_certificates_and_no_others(cluster: Cluster, tmp_path: Path) -> None:
    token, pinned = cluster.token()
    other, _ = cluster.token()
    first, second = tmp_path / "n2", tmp_path / "n3"
    with (
        machine(cluster, first, token, pinned),
        machine(cluster, second, other, pinned),
        contextlib.ExitStack() as stack,
    ):
        assert cluster.renewed(first, "ingress") == 200
        before = cluster.certificates()
        assert before["system:node:n2"] == before["ingress:n2"] == (token[:6], "in force")
        assert before["system:node:n3"] == before["ingress:n3"] == (other[:6], "in force")
        watches = [
            stack.enter_context(contextlib.closing(cluster.connection(first / "pki" / user))) for user in USERS
        ]
        answers = []
        for watch in watches:
            watch.request("GET", f"{SERVICES}?watch=1")
            answers.append(stack.enter_context(watch.getresponse()))
        said = cluster.vipwire("token", "delete", token[:6])
        assert said == "Node n2: the API servers refuse the certificates of this token\n"
        cluster.await_codes(first, [401, 401])
        for answer in answers:  # both end
            with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
                answer.read()
        assert [cluster.renewed(first, user) for user in USERS] == [401, 401]
        assert cluster.codes(second) == [200, 200]
        assert [cluster.renewed(second, user) for user in USERS] == [200, 200]
    after = cluster.certificates()
    assert after["system:node:n2"] == after["ingress:n2"] == (token[:6], "refused")
    assert after["system:node:n3"] == after["ingress:n3"] == (other[:6], "in force")
    assert "there is no token" in cluster.tried("token", "delete", token[:6]).stderr


def test_certificates_end_when_kubectl_deletes_the_token_and_stay_ended(tmp_path: Path) -> None:
    folder, cluster = tmp_path / "n2", Cluster(tmp_path / "up")
    with up(cluster.folder, "--node-name", "n1"):
        token, pinned = cluster.token()
        with machine(cluster, folder, token, pinned):
            secret = cluster.admin("GET", f"{SECRETS}/bootstrap-token-{token[:6]}")[1]
            assert cluster.admin("DELETE", f"{SECRETS}/bootstrap-token-{token[:6]}")[0] == 200
            cluster.await_codes(folder, [401, 401])
        del secret["metadata"]["uid"], secret["metadata"]["resourceVersion"]
        assert cluster.admin("POST", SECRETS, secret)[0] == 201  # another token of the same id and secret
        assert cluster.codes(folder) == [401, 401]
    with up(cluster.folder, "--node-name", "n1"):
        assert cluster.codes(folder) == [401, 401]
        assert cluster.certificates()["system:node:n2"] == (token[:6], "refused")


def test_machines_can_stay_when_their_token_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    token, pinned = cluster.token()
    folder = tmp_path / "n2"
    with machine(cluster, folder, token, pinned):
        assert cluster.vipwire("token", "delete", "--keep-machines", token[:6]) == ""
        assert cluster.codes(folder) == [200, 200]
        assert [cluster.renewed(folder, user) for user in USERS] == [200, 200]
        Folder(tmp_path / "n3").prepare("")
        joined = cluster.ask(
            None, "POST", CERTIFICATES, {"request": request(tmp_path / "n3", "node")}, Authorization=f"Bearer {token}"
        )
        assert joined[0] == 401
        assert cluster.certificates()["system:node:n2"] == (token[:6], "in force")
        cluster.vipwire("token", "delete", token[:6])  # of a token that is gone, as after its time
        cluster.await_codes(folder, [401, 401])


def test_certificates_end_with_their_node_and_another_of_its_name_brings_none_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    token, pinned = cluster.token()
    folder = tmp_path / "n2"
    with machine(cluster, folder, token, pinned):
        assert cluster.admin("DELETE", f"{NODES}/n2")[0] == 200
        cluster.await_codes(folder, [401, 401])
        assert [cluster.renewed(folder, user) for user in USERS] == [401, 401]
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        assert cluster.admin("POST", NODES, {"metadata": {"name": "n2"}, "status": status})[0] == 201
        assert cluster.codes(folder) == [401, 401]
    assert cluster.admin("DELETE", f"{NODES}/n2")[0] == 200
    again = tmp_path / "again/n2"
    again.parent.mkdir()
    with machine(cluster, again, token, pinned):
        assert cluster.codes(again) == [200, 200]
        assert cluster.codes(folder) == [401, 401]


def test_a_node_shows_who_has_a_certificate_and_an_ingress_counts_while_it_is_ready(
    cluster: Cluster, tmp_path: Path
) -> None:
    token, _ = cluster.token()
    folder = tmp_path / "ghost"
    Folder(folder).prepare("")
    body = {"request": request(folder, "node")}
    code, answer = cluster.ask(None, "POST", CERTIFICATES, body, Authorization=f"Bearer {token}")
    assert code == 200
    (folder / "pki/node.crt").write_text(answer["certificate"])
    code, node = cluster.admin("GET", f"{NODES}/ghost")
    assert (code, node["status"].get("conditions")) == (200, None)
    code, answer = cluster.ask(folder / "pki/node", "POST", CERTIFICATES, {"request": request(folder, "ingress")})
    assert code == 200
    (folder / "pki/ingress.crt").write_text(answer["certificate"])
    assert cluster.codes(folder) == [200, 401]
    for status, wanted in (("True", 200), ("Unknown", 401), ("True", 200), ("False", 401)):
        ready = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        kind = "application/strategic-merge-patch+json"
        assert cluster.ask(folder / "pki/node", "PATCH", f"{NODES}/ghost/status", ready, kind=kind)[0] == 200
        cluster.await_codes(folder, [200, wanted])
    assert cluster.certificates() == {
        "system:node:ghost": (token[:6], "in force"),
        "ingress:ghost": (token[:6], "in force"),
    }


def test_a_server_keeps_the_authority_when_its_token_is_deleted_and_the_command_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    token, pinned = cluster.token("--server")
    folder = tmp_path / "server"
    join = [*VIPWIRE, "join", f"https://127.0.0.1:{cluster.port}", "--server", "--token", token, "--ca-hash", pinned]
    assert subprocess.run([*join, "--data-dir", str(folder)], capture_output=True, check=False).returncode == 0
    said = cluster.vipwire("token", "delete", token[:6])
    assert said == "an API server that joined with the token still has the key of the authority\n"
    assert (folder / "pki/ca.key").read_bytes() == (cluster.folder / "pki/ca.key").read_bytes()
    assert cluster.ask(cluster.folder / "pki/admin", "GET", SERVICES)[0] == 200
    code, _ = cluster.ask(None, "GET", "/vipwire.io/v1/servers", Authorization=f"Bearer {token}")
    assert code == 401
