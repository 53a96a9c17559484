"""Files that are written whole or not at all."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vipwire.file_io.files import create_file, replace_file
from vipwire.file_io.private_files import update_private, write_private


def test_a_replaced_file_has_the_new_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_the_draft_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    (tmp_path / "state.json.new").write_bytes(b"half of a dr")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "state.json", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"untouched")
    (tmp_path / "state.json.new").symlink_to(elsewhere)
    replace_file(path, b"new")
    assert elsewhere.read_bytes() == b"untouched"
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()


def test_a_private_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "ca.key"
    write_private(path, b"key")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_update_with_the_same_content_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    write_private(path, b"certificate")
    before = path.stat().st_ino
    update_private(path, b"certificate")
    assert path.stat().st_ino == before
    update_private(path, b"another")
    assert path.read_bytes() == b"another"


def test_a_file_is_not_created_over_another_or_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "token", tmp_path / "link"
    create_file(path, b"token")
    link.symlink_to(tmp_path / "nowhere")
    for taken in (path, link):
        with pytest.raises(FileExistsError):
            create_file(taken, b"another")
    assert path.read_bytes() == b"token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


STRANGER = 65534


def _file_of_theirs(place: Path) -> Path:
    (place / "f").touch()
    os.chown(place / "f", STRANGER, STRANGER)
    return place / "f"


def _link_of_theirs(place: Path) -> Path:
    (place / "mine").touch()
    (place / "f").symlink_to(place / "mine")
    os.chown(place / "f", STRANGER, STRANGER, follow_symlinks=False)
    return place / "f"


def _dangling_link_of_theirs(place: Path) -> Path:
    (place / "f").symlink_to(place / "nowhere")
    os.chown(place / "f", STRANGER, STRANGER, follow_symlinks=False)
    return place / "f"


def _pipe_of_theirs(place: Path) -> Path:
    os.mkfifo(place / "f")
    os.chown(place / "f", STRANGER, STRANGER)
    return place / "f"


def _in_a_folder_of_theirs(place: Path) -> Path:
    (place / "theirs" / "mine").mkdir(parents=True)
    os.chown(place / "theirs", STRANGER, STRANGER)
    return place / "theirs" / "mine" / "f"


def _by_a_link_into_a_folder_of_theirs(place: Path) -> Path:
    (place / "link").symlink_to(_in_a_folder_of_theirs(place).parent)
    return place / "link" / "f"


def _where_all_may_write(place: Path) -> Path:
    (place / "open" / "mine").mkdir(parents=True)
    (place / "open").chmod(0o777)
    return place / "open" / "mine" / "f"


def _where_another_group_may_write(place: Path) -> Path:
    (place / "open").mkdir()
    os.chown(place / "open", 0, STRANGER)
    (place / "open").chmod(0o775)
    return place / "open" / "f"


UNSAFE = (
    *(_file_of_theirs, _link_of_theirs, _dangling_link_of_theirs, _pipe_of_theirs, _in_a_folder_of_theirs),
    *(_by_a_link_into_a_folder_of_theirs, _where_all_may_write, _where_another_group_may_write),
)


def vipwire(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "vipwire", *words], capture_output=True, text=True, check=False)


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("unsafe", UNSAFE, ids=lambda each: each.__name__)
def test_a_place_that_another_user_can_replace_is_refused(tmp_path: Path, unsafe: Callable[[Path], Path]) -> None:
    tmp_path.chmod(0o1777)
    path = unsafe(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = vipwire("proxy", f"--write-config-to={path}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --write-config-to {path}: ")
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert not any(each.read_bytes() for each in before if each.is_file())


def test_a_place_of_ours_is_written_to_whatever_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").touch(0o600)
    for name in ("new", "link"):
        assert vipwire("proxy", f"--write-config-to={tmp_path / name}").returncode == 0
        assert "KubeProxyConfiguration" in (tmp_path / name).read_text()
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert "KubeProxyConfiguration" in vipwire("proxy", "--write-config-to=/dev/stdout").stdout


SERVICE = """apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.1], conditions: {ready: true}}]
"""


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize(
    "words",
    [
        "proxy --write-config-to={0}/f",
        "install systemd dns --root={0}",
        "store backup --data-dir={1} {0}/f",
        "ingress render --manifests={1} --output-dir={0}",
        "drain 10.244.0.1 --manifests={1} --force --state-dir={0}",
        "up --data-dir={0}",
    ],
)
def test_each_command_that_writes_refuses_a_folder_below_another_users(tmp_path: Path, words: str) -> None:
    folder, mine = _in_a_folder_of_theirs(tmp_path).parent, tmp_path / "data"
    mine.mkdir()
    sqlite3.connect(mine / "store.db").close()
    (mine / "services.yaml").write_text(SERVICE)
    done = vipwire(*words.format(folder, mine).split())
    assert done.returncode == 1
    assert f"user {STRANGER} owns {folder.parent} and can replace this folder" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [each for each in folder.rglob("*") if each.is_file()]
