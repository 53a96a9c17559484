"""A shell on its own machine: network, mount and pid namespaces and a host name, which end with it."""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PATIENCE: Final = 90.0
_UNSHARE: Final = ("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
FOLDERS: Final = tuple(
    map(Path, ("/var/lib/vipwire", "/etc/vipwire", "/run/vipwire", "/run/vipwire-lab", "/run/netns"))
)
_MACHINE: Final = """\
set +m
hostname vm
for folder in $FOLDERS; do mount -t tmpfs -o mode=755 none "$folder"; done
mkdir "$HOME"; echo silent >"$HOME/.curlrc"
ip link set lo up
cd "$STAGE"
"""


class Shell:
    """Runs one command after the other, as a user types them; `begin` starts one in the background."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vipwire-examples-")
        self.folder = Path(self._folder.name)
        programs = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {
            "PATH": programs,
            "HOME": f"{self.folder}/home",
            "STAGE": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "200",
        }
        for folder in FOLDERS:  # left in place: removing one would unmount other users' mounts on it
            folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [*_UNSHARE, "bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment | {"FOLDERS": " ".join(map(str, FOLDERS))},
        )
        self._rest = b""
        self._number = 0
        self._going: list[Said] = []
        status, said = self.run(_MACHINE)
        assert status == 0, said

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(PATIENCE)
        for said in self._going:
            said.close()
        self._folder.cleanup()

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end; return exit status and output."""
        assert self._process.stdin
        self._number += 1
        mark = f"--- end of {self._number}: "
        self._process.stdin.write(f'{{ {command}\n}} 2>&1 </dev/null\necho "{mark}$?"\n'.encode())
        self._process.stdin.flush()
        said = self._until(mark)
        return int(said[1]), said[0]

    def _until(self, mark: str) -> tuple[str, str]:
        assert self._process.stdout
        end = time.monotonic() + PATIENCE
        while True:
            before, found, behind = self._rest.partition(mark.encode())
            if found and b"\n" in behind:
                status, _, self._rest = behind.partition(b"\n")
                return before.decode(errors="replace"), status.decode()
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"it goes on: {self._rest.decode(errors='replace')}\n{self._beside()}"
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            assert part, f"the shell has ended: {self._rest.decode(errors='replace')}"
            self._rest += part

    def _beside(self) -> str:
        """Return the last output of background commands."""
        return "\n".join(line for said in self._going for line in said.heard()[-8:])

    def enter(self, network: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"exec nsenter --net=/run/netns/{network} bash --norc\n".encode())

    def begin(self, command: str) -> "Said":
        """Start a command in the background; return its output."""
        self._number += 1
        path = self.folder / f"said-{self._number}"
        os.mkfifo(path)
        said = Said(path)
        status, _ = self.run(f"{{ {command.rstrip('& ')}\n}} >{path} 2>&1 &")
        assert status == 0
        self._going.append(said)
        return said

    def pause(self, seconds: float) -> None:
        """Wait before the next look."""
        assert self._process.stdout
        select.select([self._process.stdout], [], [], seconds)


class Said:
    """The output of a background command."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._said = b""

    def until(self, enough: Callable[[Sequence[str]], bool]) -> Sequence[str]:
        """Read until `enough` holds or the timeout; return all lines so far."""
        end = time.monotonic() + PATIENCE
        while not enough(lines(self._said.decode(errors="replace"))):
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._descriptor, 1 << 16) if ready else b""
            if not part:
                break
            self._said += part
        return lines(self._said.decode(errors="replace"))

    def heard(self) -> Sequence[str]:
        """Read available output without waiting; return all lines so far."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._descriptor, 1 << 16):
                self._said += part
        return lines(self._said.decode(errors="replace"))

    def close(self) -> None:
        os.close(self._descriptor)


def lines(text: str) -> Sequence[str]:
    """Split output into lines, without blank ones at its end."""
    return text.rstrip().splitlines()
