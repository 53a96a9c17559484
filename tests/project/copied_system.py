"""A copy of this system, in memory, in which root's commands run without a network."""

import subprocess
from pathlib import Path

import pytest

# Overlays stand on the root alone: what is mounted below it (/tmp, maybe) is not seen in them.
ENTER = """\
set -e
mount -t tmpfs tmpfs "$1"; mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"; mount --bind /dev "$1/root/dev"; mount -t tmpfs tmpfs "$1/root/run"
mount -t tmpfs tmpfs "$1/root/tmp"; mkdir "$1/root/tmp/packages"
mount --bind "$2" "$1/root/tmp/packages"
exec chroot "$1/root" /bin/sh
"""


class System:
    """A shell in a copy of this system that nobody keeps, with network and processes of its own."""

    def __init__(self, place: Path, packages: Path) -> None:
        unshared = ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "--mount-proc"]
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        self._shell = subprocess.Popen(
            [*unshared, "sh", "-c", ENTER, "sh", str(place), str(packages)],
            env=clean,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, line: str) -> str:
        """Run a line, which has to succeed; return what it printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"( {line}\n) </dev/null 2>&1; echo; echo ended with $?\n")
        self._shell.stdin.flush()
        said: list[str] = []
        for text in self._shell.stdout:
            if text.startswith("ended with "):
                output = "".join(said).strip()
                assert text.split()[-1] == "0", f"{line}: {output}"
                return output
            said.append(text)
        pytest.fail(f"the system ended at {line}: {''.join(said)}")

    def close(self) -> None:
        self._shell.communicate()
