"""deploy/install.sh in a copy of this system: it refuses without a change, installs, upgrades, keeps what works."""

import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.interpreters import own_architecture, run
from scripts.tree import INSTALLER, name_of
from tests.project.copied_system import System

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
SHARED = (
    "man/man8/vipwire.8.gz",
    "completion/bash",
    "completion/zsh",
    "completion/fish",
    "vipwire.service",
    "vipwire.env",
)
FILES = "find /etc /opt /usr/local /usr/share/bash-completion /usr/share/fish -xdev | sort"
RUN = "sh /tmp/packages/{}/install.sh"


def release(folder: Path, version: str, interpreter: str = "/bin/sh") -> None:
    """Write an archive whose program tells its version, its sum, and the script."""
    folder.mkdir()
    name = name_of(version, own_architecture())
    program = f"#!{interpreter}\necho vipwire {version}\n".encode()
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
        for path in SHARED:
            archive.addfile(tarfile.TarInfo(f"{name}/share/{path}"))
        file = tarfile.TarInfo(f"{name}/bin/vipwire")
        file.size, file.mode = len(program), 0o755
        archive.addfile(file, io.BytesIO(program))
    found = hashlib.sha256((folder / f"{name}.tar.gz").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{found}  {name}.tar.gz\n", encoding="utf-8")
    shutil.copy(INSTALLER, folder)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two releases, some that are not to be installed, and a uname of another machine."""
    folder = tmp_path_factory.mktemp("releases")
    for version in ("1.0.0", "2.0.0"):
        release(folder / version, version)
    release(folder / "broken", "3.0.0", "/nowhere")
    for name in ("changed", "foreign", "signed"):
        release(folder / name, "4.0.0")
    with next((folder / "changed").glob("*.tar.gz")).open("ab") as file:
        file.write(b"one more")
    sums = folder / "foreign/SHA256SUMS"
    sums.write_text(sums.read_text(encoding="utf-8").replace(own_architecture(), "s390x"), encoding="utf-8")
    for name in ("ours", "theirs"):
        run("minisign", "-G", "-W", "-p", folder / f"{name}.pub", "-s", folder / f"{name}.key")
    run("minisign", "-S", "-s", folder / "ours.key", "-m", folder / "signed/SHA256SUMS")
    (folder / "uname").write_text('#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo riscv64\n', encoding="utf-8")
    (folder / "uname").chmod(0o755)
    folder.chmod(0o755)
    return folder


@pytest.fixture
def system(releases: Path, tmp_path: Path) -> Iterator[System]:
    found = System(tmp_path, releases)
    yield found
    found.close()


REFUSALS = {
    f"setpriv --reuid=65534 --regid=65534 --clear-groups {RUN.format('1.0.0')}": "run it as root: sudo sh",
    f"PATH=/tmp/packages:$PATH {RUN.format('1.0.0')}": "there is no archive for riscv64, only for x86_64 and aarch64",
    RUN.format("changed"): "does not have the SHA-256 of SHA256SUMS",
    RUN.format("foreign"): f"names no archive for {own_architecture()}",
    RUN.format("broken"): "the new program does not run here",
    f"{RUN.format('1.0.0')} --from /tmp": "cannot get /tmp/SHA256SUMS",
    f"{RUN.format('1.0.0')} --prefix /usr": "unknown option --prefix",
    f"{RUN.format('1.0.0')} --key /tmp/packages/ours.pub": "cannot get /tmp/packages/1.0.0/SHA256SUMS.minisig",
    f"{RUN.format('signed')} --key /tmp/packages/theirs.pub": "SHA256SUMS is not signed with",
}


def refuse(system: System) -> None:
    before = system.run(FILES)
    for line, reason in REFUSALS.items():
        assert reason in system.run(f"! {line}")
        assert system.run(FILES) == before, line


def test_a_refusal_changes_nothing(system: System) -> None:
    refuse(system)
    for folder, reason in (("/usr/lib/vipwire", "the Debian package is installed"), ("/opt/vipwire", "move it away")):
        assert reason in system.run(f"mkdir -p {folder}; ! {RUN.format('1.0.0')}; rmdir {folder}")


def test_installed_upgraded_and_kept_by_a_refusal(system: System) -> None:
    said = system.run(RUN.format("1.0.0"))
    assert "systemd does not run here" in said
    assert "vipwire 1.0.0 is installed in /opt/vipwire" in said
    first = system.run(FILES)
    system.run("echo VIPWIRE_FLAGS=--v=4 >/etc/vipwire/vipwire.env")
    refuse(system)
    assert system.run("/usr/local/bin/vipwire version") == "vipwire 1.0.0"
    assert "vipwire 4.0.0 is" in system.run(f"{RUN.format('signed')} --key /tmp/packages/ours.pub")
    assert "vipwire 2.0.0 is" in system.run(RUN.format("2.0.0"))
    assert system.run(FILES) == first
    assert system.run("cat /etc/vipwire/vipwire.env") == "VIPWIRE_FLAGS=--v=4", "its owner's file stays"
    listed = system.run("cat /opt/vipwire/installed").split()
    assert len(listed) == len(set(listed)) >= len(SHARED)
    assert system.run(f"ls -d {' '.join(listed)} | wc -l") == str(len(listed))
