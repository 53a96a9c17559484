"""`vipwire sysdump` beside `vipwire up` and a proxy: what is in the archive, and that no planted secret is."""

import base64
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.up.unit.cluster_process import CLIENTS

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.demo.standalone import Standalone

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
NODE = "node-1"
SECRETS = {
    "annotation": "planted-annotation-1",
    "applied": "planted-applied-2",
    "secret": "planted-Secret-3",
    "environment": "planted-environment-4",
    "header": "planted-header-5",
    "kubeconfig": "planted-kubeconfig-6",
    "haproxy": "planted-haproxy-7",
    "url": "planted-url-8",
    "bootstrap": "abcdef.0123456789abcdef",
}
LIST = "kubectl.kubernetes.io/last-applied-configuration"
HAPROXY = f"""
userlist people
  user ann insecure-password {SECRETS["haproxy"]}
backend web
  dynamic-cookie-key {SECRETS["haproxy"]}
  server one 10.0.0.1:80
"""


def objects() -> list[dict[str, Any]]:
    annotations = {"example.com/note": SECRETS["annotation"], LIST: f'{{"password": "{SECRETS["applied"]}"}}'}
    annotations["vipwire.io/algorithm"] = f"token={SECRETS['annotation']}"
    service = {"spec": {"ports": [{"port": 80}]}, "metadata": {"name": "web", "annotations": annotations}}
    setting = {"set": [{"name": "X-Anything", "value": SECRETS["header"]}]}
    rules = [{"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": setting}]}]
    return [
        {"apiVersion": "v1", "kind": "Service", **service},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": SECRETS["secret"]}},
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "route"},
            "spec": {"rules": rules},
        },
    ]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Standalone, Path]]:
    folder = tmp_path_factory.mktemp("sysdump")
    with Lab() as lab:
        here = Standalone(lab, NODE, folder / "up", CLIENTS[0])
        proxy = (
            "--",
            f"--state-dir={folder / 'state'}",
            "--oom-score-adj=0",
            "--metrics-bind-address=127.0.0.1:10249",
        )
        here.start("--node-name", NODE, "--no-dns", *proxy)
        here.apply(objects())
        yield lab, here, folder
        assert here.process
        here.process.end_process(60.0)


def run(up: tuple[Lab, Standalone, Path], archive: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Run sysdump with planted secrets in the environment, a kubeconfig and the files of HAProxy."""
    lab, here, folder = up
    kubeconfig = yaml.safe_load((here.folder / "admin.kubeconfig").read_text())
    kubeconfig["users"].append({"name": "other", "user": {"token": SECRETS["kubeconfig"]}})
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
    (folder / "haproxy.cfg").write_text(HAPROXY)
    words = [
        sys.executable,
        "-m",
        "vipwire",
        "sysdump",
        f"--state-dir={folder / 'state'}",
        "-o",
        str(archive),
        *flags,
    ]
    old = folder / "run"
    old.mkdir(exist_ok=True)
    steps = (
        *(f"mount --bind /run {old}", "mount -t tmpfs none /run", "mkdir /run/vipwire /run/vipwire-ingress"),
        *(f"mount --bind {old}/vipwire /run/vipwire", f"cp {folder}/haproxy.cfg /run/vipwire-ingress/"),
    )
    place = " && ".join(steps)
    shell = ["unshare", "-m", "sh", "-c", f'{place} && exec "$@"', "sh", *words]
    environment = os.environ | {"MY_API_TOKEN": SECRETS["environment"], "KUBECONFIG": str(folder / "kubeconfig")}
    environment["VIPWIRE_FLAGS"] = "--logging-format=json"
    return lab.run(NODE, shell, check=False, timeout=120.0, env=environment)


def read(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as opened:
        members = [member for member in opened if member.isfile()]
        found = {each.name.partition("/")[2]: opened.extractfile(each) for each in members}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def test_an_archive_has_the_facts_and_no_secret(up: tuple[Lab, Standalone, Path], tmp_path: Path) -> None:
    archive = tmp_path / "dump.tar.gz"
    done = run(up, archive, f"--kubeconfig={up[2] / 'kubeconfig'}")
    assert done.returncode == 0, done.stderr
    assert archive.stat().st_mode & 0o777 == 0o600
    files = read(archive)
    assert set(files) >= {
        *("versions.txt", "kernel.txt", "configuration.yaml", "flags.txt", "check.json", "status.json", "diff.json"),
        *(
            "rules-ipv4.txt",
            "rules-ipv6.txt",
            "metrics.txt",
            "healthz.json",
            "proxy.json",
            "journal.txt",
            "errors.txt",
        ),
        *("objects/service.yaml", "objects/endpointslice.yaml", "objects/node.yaml", "objects/httproute.yaml"),
        "haproxy/vipwire-ingress/haproxy.cfg",
    }
    assert files["errors.txt"] == ""
    assert json.loads(files["status.json"])["proxy"]["state"] == "running"
    assert "default/web" in files["rules-ipv4.txt"]
    assert "server one 10.0.0.1:80" in files["haproxy/vipwire-ingress/haproxy.cfg"]
    assert "vipwire_" in files["metrics.txt"]
    assert not any("secret" in name for name in files)
    everything = "\n".join(files.values())
    key = yaml.safe_load((up[1].folder / "admin.kubeconfig").read_text())["users"][0]["user"]["client-key-data"]
    for secret in (*SECRETS.values(), key, base64.b64decode(key).decode()):
        for form in (secret, base64.b64encode(secret.encode()).decode()):
            assert form not in everything, secret


def test_what_cannot_be_read_is_named_and_the_rest_is_there(up: tuple[Lab, Standalone, Path], tmp_path: Path) -> None:
    archive = tmp_path / "dump.tar.gz"
    done = run(up, archive, f"--master=https://ann:{SECRETS['url']}@127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    files = read(archive)
    assert "objects: " in files["errors.txt"]
    assert json.loads(files["status.json"])["silent"][0]["part"] == "objects"
    assert SECRETS["url"] not in "\n".join(files.values())
    again = run(up, archive)
    assert again.returncode == 1
    assert "File exists" in again.stderr
