"""`vipwire up` as a process, and kubectl as its client: the one on PATH, and the current one of the wheel."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VIPWIRE = (sys.executable, "-m", "vipwire")
WHEEL = Path(sys.executable).parent / "kubectl"
CLIENTS = tuple(dict.fromkeys(path for path in (shutil.which("kubectl"), str(WHEEL)) if path and Path(path).exists()))
PATIENCE = 60.0
ALONE = ("--no-proxy", "--no-dns")  # this machine's network stays untouched


@contextlib.contextmanager
def up(folder: Path, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a cluster in a folder for the block; it is started when this yields."""
    command = [*VIPWIRE, "up", "--data-dir", str(folder), "--secure-port", "0", *ALONE, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            seen: list[str] = []
            while not seen or not seen[-1].startswith("try:"):
                line = process.stdout.readline()
                assert line, f"it ended: {''.join(seen)}"
                seen.append(line)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.stdout.read()  # to its end, so that its last output is not lost
    assert process.returncode in (0, -signal.SIGKILL)


class Kubectl:
    def __init__(self, program: str, kubeconfig: Path, home: Path) -> None:
        self._program = program
        self.is_current = program == str(WHEEL)
        self.environment = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": str(home)}

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Run it; success and failure are both allowed."""
        command = [self._program, *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=self.environment, timeout=PATIENCE, check=False
        )

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run it, which must succeed; return its output."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *arguments: str, stdin: str = "") -> str:
        """Run it, which must fail; return its error."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, f"{arguments}: {done.stdout}"
        return done.stderr

    @contextlib.contextmanager
    def following(self, *arguments: str) -> Iterator["Lines"]:
        """Run it in the background and read its lines."""
        command = [self._program, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, env=self.environment, **pipes) as process:  # type: ignore[call-overload]
            try:
                yield Lines(process.stdout.fileno())
            finally:
                process.kill()


class Lines:
    """Lines of a pipe, awaited."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""

    def until(self, word: str) -> str:
        """Read up to a line with a word."""
        end = time.monotonic() + PATIENCE
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                if word in line.decode():
                    return line.decode()
            ready, _, _ = select.select([self._descriptor], [], [], end - time.monotonic())
            assert ready, f"no line with {word!r}"
            part = os.read(self._descriptor, 1 << 16)
            assert part, f"it ended before a line with {word!r}"
            self._rest += part
