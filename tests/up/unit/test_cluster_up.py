"""`vipwire up`, `vipwire store`: the commands as a user meets them; killed, restarted, backed up."""

import os
import re
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.up.unit.cluster_process import ALONE, CLIENTS, VIPWIRE, Kubectl, up

from vipwire.cli.main import main

pytestmark = [pytest.mark.attack, pytest.mark.slow]


def vipwire(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*VIPWIRE, *arguments], capture_output=True, text=True, timeout=60, check=False)


def here(*arguments: str) -> Result:
    """Run it in this process, which takes a tenth of the time."""
    return CliRunner().invoke(main, arguments)


def test_killed_and_started_again_it_is_what_it_was_with_the_same_credentials(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data) as process:
        kubectl = Kubectl(CLIENTS[-1], data / "admin.kubeconfig", tmp_path)
        kubectl("create", "configmap", "kept", "--from-literal=a=b")
        assert vipwire("store", "backup", "--data-dir", str(data), str(tmp_path / "copy.db")).returncode == 0
        kubectl("create", "configmap", "later", "--from-literal=a=b")
        authority = (data / "pki/ca.crt").read_bytes()
        process.send_signal(signal.SIGKILL)
    with up(data):
        assert set(kubectl("get", "configmap", "-o", "name").split()) == {"configmap/kept", "configmap/later"}
        assert (data / "pki/ca.crt").read_bytes() == authority
        said = vipwire("store", "restore", "--data-dir", str(data), str(tmp_path / "copy.db"))
        assert (said.returncode, said.stderr) == (1, f"error: {data}: in use by another vipwire\n")
    assert vipwire("store", "restore", "--data-dir", str(data), str(tmp_path / "copy.db")).returncode == 0
    with up(data):
        assert kubectl("get", "configmap", "-o", "name").split() == ["configmap/kept"]


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    with up(tmp_path / "data"):
        found = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert len(found) > 10
        assert [path for path in found if path.stat().st_mode & 0o077] == []


def test_roles_by_certificate_and_by_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data):
        view = Kubectl(CLIENTS[-1], data / "view.kubeconfig", tmp_path)
        assert view("get", "namespaces", "-o", "name").split()[0] == "namespace/default"
        said = view.refused("create", "configmap", "a", "--from-literal=a=b")
        assert 'User "viewer" cannot create resource "configmaps" in API group "" in the namespace "default"' in said
        url = yaml.safe_load((data / "admin.kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        trusting = ssl.create_default_context(cafile=str(data / "pki/ca.crt"))
        token = re.match(r"[^,]+", (data / "tokens.csv").read_text())
        assert token
        assert ask(f"{url}/api/v1/secrets", trusting, token[0]) == 200
        assert ask(f"{url}/api/v1/secrets", trusting, "wrong") == 401
        assert ask(f"{url}/api/v1/secrets", trusting, "") == 403
        assert ask(f"{url}/version", trusting, "") == 200


def ask(url: str, trusting: ssl.SSLContext, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # https, as we wrote it
    try:
        with urllib.request.urlopen(request, context=trusting, timeout=30) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_what_cannot_work_is_said_in_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = vipwire("up", *ALONE, "--data-dir", str(data), "--secure-port", port)
        assert (said.returncode, len(said.stderr.splitlines())) == (1, 1)
        assert f"--secure-port {port}" in said.stderr
        assert "ddress already in use" in said.stderr
    (data / "tokens.csv").write_text("nonsense\n")
    heard = here("up", *ALONE, "--data-dir", str(data), "--secure-port", "0")
    assert f"{data}/tokens.csv: line 1: expected token,user,uid" in heard.stderr
    (data / "tokens.csv").unlink()
    (data / "pki/ca.crt").write_text("nonsense")
    heard = here("up", *ALONE, "--data-dir", str(data), "--secure-port", "0")
    assert f"error: {data}/pki/ca.crt: not a certificate" in heard.stderr
    (data / "store.db").write_bytes(b"nonsense" * 1000)
    heard = here("up", *ALONE, "--data-dir", str(data), "--secure-port", "0")
    assert f"error: {data}/store.db: not a database; restore a backup" in heard.stderr
    heard = here("up", "--no-proxy", "--dns-upstream", "nowhere", "--data-dir", str(data))
    assert heard.stderr == "error: --dns-upstream: 'nowhere' is not an IP address\n"
    heard = here("up", *ALONE, "--data-dir", os.devnull)
    assert heard.exit_code == 1
    assert isinstance(heard.exception, SystemExit), heard.exception
    assert "Traceback" not in heard.stderr


def test_help_says_what_they_do() -> None:
    for command in (("up",), ("store",), ("store", "backup"), ("store", "restore")):
        said = here(*command, "--help")
        assert (said.exit_code, said.stderr) == (0, "")
        assert len(said.stdout.splitlines()) > 5
