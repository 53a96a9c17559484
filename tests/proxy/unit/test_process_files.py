"""Files that are written whole or not at all."""

import stat
from pathlib import Path

import pytest

from vipwire.file_io.files import create_file, replace_file, update_private, write_private


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
