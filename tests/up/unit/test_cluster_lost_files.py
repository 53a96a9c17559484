"""Files of a cluster that are lost, or that others can change: a start tells, and makes nothing anew in silence."""

import os
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.up.unit.cluster_process import ALONE, VIPWIRE, up

pytestmark = [pytest.mark.attack, pytest.mark.slow]
JOIN = ("join", "https://127.0.0.1:1", "--token", "a.b", "--ca-hash", f"sha256:{'0' * 64}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a cluster that has run."""
    folder = tmp_path_factory.mktemp("served") / "data"
    with up(folder):
        pass
    return folder


def lose(*patterns: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for path in [each for pattern in patterns for each in folder.glob(pattern)]:
            path.unlink(missing_ok=True)

    return remove


def dangling(folder: Path) -> None:
    (folder / "pki/ca.key").rename(folder / "away")
    (folder / "pki/ca.key").symlink_to(folder / "nowhere")


STORES = {
    "store.db": lose("store.db"),
    "the store and its log": lose("store.db*"),
    "the store and its lock": lose("store.*"),
    "the store and the tokens": lose("store.*", "tokens.csv", "*.kubeconfig"),
    "all but the authority": lose("*.*", "pki/[!c]*"),
    "all but the authority's certificate": lose("*.*", "pki/[!c]*", "pki/ca.key"),
    "all but the authority's key": lose("*.*", "pki/*.crt", "pki/[!c]*"),
}
AUTHORITIES = {
    "ca.key": lose("pki/ca.key"),
    "ca.key and ca.crt": lose("pki/ca.*"),
    "all keys": lose("pki/*.key"),
    "a link to no file": dangling,
}


def start(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [*VIPWIRE, "up", *ALONE, "--secure-port", "0", "--data-dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("store."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("case", [*STORES, *AUTHORITIES])
def test_what_is_lost_is_told_and_not_made_anew(served: Path, tmp_path: Path, case: str) -> None:
    folder = tmp_path / "data"
    shutil.copytree(served, folder)
    (STORES | AUTHORITIES)[case](folder)
    before = files(folder)
    done = start(folder)
    assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (1, 1, ""), done.stderr
    assert files(folder) == before
    if case in STORES:
        assert "vipwire store restore" in done.stderr
        assert not (folder / "store.db").exists()
    else:
        assert str(folder / "pki/ca.key") in done.stderr


def test_a_restored_store_starts_without_its_keys_and_a_failed_join_keeps_nothing_from_starting(
    served: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    (folder / "pki").mkdir(parents=True, mode=0o700)
    shutil.copy(served / "store.db", tmp_path / "copy.db")
    shutil.copy(served / "pki/view.key", folder / "pki/node.key")  # as an interrupted join leaves one
    command = [*VIPWIRE, "store", "restore", "--data-dir", str(folder), str(tmp_path / "copy.db")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    with up(folder):
        assert (folder / "pki/ca.key").exists()


def test_no_link_and_no_pipe_that_another_user_has_planted_takes_a_key(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (folder / "pki").mkdir(parents=True)
    elsewhere.touch()
    for name in ("pki/ca.key.new", "pki/admin.key.new", "tokens.csv.new", "admin.kubeconfig.new"):
        (folder / name).symlink_to(elsewhere)
    os.mkfifo(folder / "pki/server.key.new")
    with up(folder):
        assert elsewhere.read_text() == ""
    assert (folder / "pki/server.key").is_file()


@pytest.mark.parametrize(
    "words", [("up", *ALONE), ("join", "https://127.0.0.1:1", "--token", "a.b", "--ca-hash", "sha256:" + "0" * 64)]
)
@pytest.mark.parametrize("linked", [False, True], ids=["", "by a link of theirs"])
def test_a_data_directory_of_another_user_is_refused(tmp_path: Path, words: tuple[str, ...], *, linked: bool) -> None:
    folder = tmp_path / "data"
    (tmp_path / "real").mkdir()
    if linked:
        folder.symlink_to(tmp_path / "real")
    else:
        folder.mkdir()
    os.chown(folder, 65534, 65534, follow_symlinks=False)
    command = [*VIPWIRE, *words, "--data-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"--data-dir {folder}: user 65534 owns this folder and can replace its files" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_a_running_server_makes_no_other_authority(served: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(served, folder)
    trusting = ssl.create_default_context(cafile=str(served / "pki/ca.crt"))
    with up(folder):
        url = re.search(r"server: (\S+)", (folder / "admin.kubeconfig").read_text())
        assert url

        def ask() -> int:
            path = f"{url[1]}/vipwire.io/v1/authority" if url else ""
            try:
                with urllib.request.urlopen(path, context=trusting, timeout=30) as answer:  # noqa: S310
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        assert ask() == 200
        for lost in (("ca.key",), ("ca.key", "ca.crt")):
            for name in lost:
                (folder / "pki" / name).rename(tmp_path / name)
            assert ask() == 500
            assert not any((folder / "pki" / name).exists() for name in lost)
            for name in lost:
                (tmp_path / name).rename(folder / "pki" / name)
            assert ask() == 200


def test_modes_with_which_others_read_or_change_are_told(served: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(served, folder)
    assert told(folder) == {}
    loose = {
        ".": 0o777,
        "pki": 0o770,
        "pki/ca.key": 0o666,
        "pki/server.key": 0o640,
        "pki/ca.crt": 0o666,
        "tokens.csv": 0o644,
        "admin.kubeconfig": 0o604,
        "store.db": 0o666,
    }
    for name, mode in loose.items():
        (folder / name).chmod(mode)
    (folder / "pki/server.crt").chmod(0o644)  # a certificate may be read
    found = {str(folder / name): f"{mode:04o}" for name, mode in loose.items() if name != "."}
    assert told(folder) == {str(folder): "0777"} | found


def told(folder: Path) -> dict[str, str]:
    """Start a cluster; give the files that its log warns of, with their modes."""
    command = [*VIPWIRE, "up", *ALONE, "--secure-port", "0", "--data-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("API server at")
        process.terminate()
        _, said = process.communicate(timeout=60)
    lines = (line for line in said.splitlines() if "level=warning" in line and " mode=" in line)
    return dict(re.findall(r"file=(\S+) mode=(\d+)", "\n".join(lines)))
