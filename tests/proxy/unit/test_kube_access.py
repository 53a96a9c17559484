"""Kubeconfigs, in-cluster access, credentials that change, proxies."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.kubeconfig import kubeconfig

from vipwire.errors import ConfigError
from vipwire.kube.access.access import Access, find_environment_proxy, load_access
from vipwire.kube.access.credentials import Credential

Json = dict[str, Any]
NOW = 1_000_000.0


def write(folder: Path, user: Json | None = None, cluster: Json | None = None, **top: Any) -> Path:
    content = kubeconfig({"server": "https://api.example:6443", **(cluster or {})}, user or {})
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump({**content, **top}))
    return path


def load(path: Path | None, master: str | None = None, environ: Mapping[str, str] | None = None) -> Access:
    return load_access(path, master, environ=environ or {})


def credential(access: Access, now: float = NOW) -> Credential:
    return asyncio.run(access.credential(now))


def test_a_token_file_wins_and_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    access = load(write(tmp_path, {"token": "abc", "tokenFile": "token"}))
    assert credential(access).authorization == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert credential(access).authorization == "Bearer two"
    (tmp_path / "token").unlink()
    with pytest.raises(ConfigError, match=r"user\.tokenFile: cannot read .*token"):
        credential(access)


def plugin(folder: Path, answer: Json, version: str = "client.authentication.k8s.io/v1", **more: Any) -> Json:
    """Make an exec plugin that counts its runs and prints its answer with the count in the token."""
    script = folder / "plugin.py"
    script.write_text(
        "import json, os, pathlib\n"
        f"runs = pathlib.Path({str(folder / 'runs')!r})\n"
        "runs.write_text((runs.read_text() if runs.exists() else '') + 'x')\n"
        f"pathlib.Path({str(folder / 'info')!r}).write_text(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"answer = json.loads({json.dumps(answer)!r})\n"
        "answer['status']['token'] += str(len(runs.read_text())) + os.environ.get('EXTRA', '')\n"
        "print(json.dumps(answer))\n"
    )
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": [str(script)], **more}}


def answer(version: str = "client.authentication.k8s.io/v1", **status: Any) -> Json:
    return {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "t", **status}}


@pytest.mark.parametrize("version", ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"])
async def test_an_exec_plugin_is_run_once_and_again_after_401(tmp_path: Path, version: str) -> None:
    env = [{"name": "EXTRA", "value": "!"}]
    user = plugin(tmp_path, answer(version), version, env=env, provideClusterInfo=True)
    access = load(write(tmp_path, user))
    first = await access.credential(NOW)
    second = await access.credential(NOW + 1e6)
    access.credentials.discard()
    third = await access.credential(NOW)
    assert [item.authorization for item in (first, second, third)] == ["Bearer t1!", "Bearer t1!", "Bearer t2!"]
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == version
    assert info["spec"]["cluster"]["server"] == "https://api.example:6443"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/nonexistent/plugin"], "cannot run"),
        ([sys.executable, "-c", "import sys; sys.exit('no login')"], "exited 1: no login"),
        ([sys.executable, "-c", "print('hello')"], "unusable answer"),
        ([sys.executable, "-c", "print('{}')"], "not an ExecCredential"),
    ],
)
def test_a_plugin_that_fails_is_named(tmp_path: Path, command: list[str], said: str) -> None:
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command[0], "args": command[1:]},
    }
    access = load(write(tmp_path, user))
    with pytest.raises(ConfigError, match=rf"user\.exec\.command: .*{said}"):
        credential(access)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"current-context": ""}, "current-context: is missing"),
        ({"current-context": "there"}, r"current-context: 'there' is not among the contexts \(here\)"),
        ({"clusters": []}, r"contexts\[here\]\.context\.cluster: 'c' is not among the clusters \(none\)"),
        ({"users": None}, r"contexts\[here\]\.context\.user: 'u' is not among the users"),
        ({"clusters": [{"name": "c", "cluster": {"server": 5}}]}, r"clusters\[0\]\.cluster\.server: Expected"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "cluster.server: '' is not the URL"),
        ({"clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}]}, "is not the URL of an API server"),
    ],
)
def test_a_broken_kubeconfig_names_file_and_field(tmp_path: Path, change: Json, said: str) -> None:
    path = write(tmp_path, **change)
    with pytest.raises(ConfigError, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"client-certificate": "x"}, r"users\[u\]\.user\.client-key: is missing"),
        ({"client-key-data": "x"}, r"users\[u\]\.user\.client-certificate-data: is missing"),
        ({"client-certificate-data": "%%", "client-key-data": "%%"}, "client-certificate-data: is not base64"),
        ({"client-certificate-data": "eA==", "client-key-data": "eA=="}, "not a pair in PEM form"),
        ({"client-certificate": "no", "client-key": "no"}, "client-certificate: cannot read"),
        ({"auth-provider": {"name": "gcp"}}, r"auth-provider: was removed"),
        ({"exec": {"command": "x", "apiVersion": "v0"}}, r"exec\.apiVersion: 'v0' is not supported"),
    ],
)
def test_a_broken_user_names_the_field(tmp_path: Path, user: Json, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, user))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"certificate-authority": "no.crt"}, "cluster.certificate-authority: cannot read"),
        ({"certificate-authority-data": "eA=="}, "cluster.certificate-authority-data: no certificate in PEM form"),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "x"}, "insecure-skip-tls-verify: cannot be"),
        ({"proxy-url": "socks5://x:1"}, "cluster.proxy-url: 'socks5://x:1' is not a supported proxy"),
    ],
)
def test_a_broken_cluster_names_the_field(tmp_path: Path, cluster: Json, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, cluster=cluster))


def test_a_kubeconfig_that_is_no_yaml_tells_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("a: 1\nb: [\n")
    with pytest.raises(ConfigError, match=r"broken: is neither YAML nor JSON: line 3, column 1"):
        load(path)
    with pytest.raises(ConfigError, match=r"--kubeconfig: cannot read .*missing"):
        load(tmp_path / "missing")


def test_tls_and_proxy_of_the_cluster_are_kept(tmp_path: Path) -> None:
    cluster = {"tls-server-name": "other", "insecure-skip-tls-verify": True, "proxy-url": "http://proxy:3128"}
    access = load(write(tmp_path, cluster=cluster))
    assert access.tls is not None
    assert (access.tls.name, access.tls.verify, access.proxy) == ("other", False, "http://proxy:3128")
    assert not access.tls.context(access.tls.material(None)).check_hostname


def test_the_master_replaces_the_server_and_needs_no_kubeconfig(tmp_path: Path) -> None:
    path = write(tmp_path, {"token": "abc"})
    access = load(path, "http://127.0.0.1:8080/")
    assert (access.server, access.tls) == ("http://127.0.0.1:8080", None)
    assert credential(access).authorization == "Bearer abc"
    assert load(None, "127.0.0.1:8080").server == "http://127.0.0.1:8080"
    assert load(None, "https://127.0.0.1").tls is not None
    with pytest.raises(ConfigError, match="--master: 'http://' is not the URL"):
        load(None, "http://")


def test_without_anything_we_must_be_in_a_pod(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set --kubeconfig or --master"):
        load_access(environ={}, service_account=tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigError, match=r"in-cluster CA: cannot read .*ca\.crt"):
        load_access(environ=environ, service_account=tmp_path)


def test_kubeconfig_of_the_environment_is_not_looked_at(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no API server"):
        load_access(environ={"KUBECONFIG": str(write(tmp_path))}, service_account=tmp_path)


@pytest.mark.parametrize(
    ("server", "excluded", "used"),
    [
        ("https://10.96.0.1", "", True),
        ("https://10.96.0.1", "10.0.0.0/8", False),
        ("https://10.96.0.1", "example.com, 10.96.0.1", False),
        ("https://10.96.0.1:6443", "10.96.0.1:443", True),
        ("https://api.example.com", ".example.com", False),
        ("https://api.example.com", "example.com", False),
        ("https://notexample.com", "example.com", True),
        ("https://api.example.com", "*", False),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://127.0.0.1", "", False),
        ("http://api.example.com", "", False),
    ],
)
def test_the_environments_proxy_and_its_exceptions(server: str, excluded: str, used: bool) -> None:  # noqa: FBT001
    environ = {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": excluded}
    assert find_environment_proxy(server, environ) == ("http://proxy:3128" if used else None)
