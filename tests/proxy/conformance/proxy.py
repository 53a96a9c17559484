"""A real `vipwire proxy` on a node of a lab: process, log, pages, rules."""

import contextlib
import http.client
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fakes import forked
from tests.fakes.forked import Forked
from tests.fakes.waiting import PATIENCE, until
from tests.proxy.conformance.mode import Mode

from vipwire.model.net import Family
from vipwire_lab.cluster.cluster import Lab


class Answer(NamedTuple):
    """An HTTP server's answer."""

    status: int
    headers: dict[str, str]
    body: str


class Proxy:
    """A node's proxy, which may start and end repeatedly. All its logs go to one file of `folder`."""

    def __init__(
        self, mode: Mode, lab: Lab, node_name: str, folder: Path, options: Sequence[str], *, checks: str = "1s"
    ) -> None:
        self.mode, self.lab, self.node_name, self._checks = mode, lab, node_name, checks
        self._log, self.options = folder / "log", tuple(options)
        self._process: Forked | None = None

    def start(self) -> None:
        self.launch()
        until(lambda: self.alive() and self.page("/readyz").status == http.HTTPStatus.OK, "/readyz is 200")

    @property
    def flags(self) -> list[str]:
        """The proxy's flags. All modes check the kernel equally often."""
        given = {option.partition("=")[0] for option in self.options}
        return [
            f"--proxy-mode={self.mode.name}",
            f"--hostname-override={self.node_name}",
            "--oom-score-adj=0",
            f"--iptables-sync-period={self._checks}",
            "--iptables-min-sync-period=0s",
            f"--ipvs-sync-period={self._checks}",
            *(flag for flag in self.mode.flags if flag.partition("=")[0] not in given),
            *self.mode.placed(self.lab, self.node_name, self.options),
            *self.options,
        ]

    def launch(self) -> None:
        self._process = forked.started(self.lab, self.node_name, ["proxy", *self.flags], self._log)

    def pause(self) -> None:
        """Let a running proxy take no CPU time until `resume`."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """End the proxy as a service manager does; return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self.resume()
        status = self._process.wait(PATIENCE)
        self._process = None
        return status

    def end_process(self) -> int:
        """End the proxy if it runs; return the exit status of the last one."""
        return self.stop() if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def said(self, since: int, *words: str) -> str:
        """Wait for a log line behind the first `since` characters with all these words; return it."""

        def look() -> str:
            lines = self.log[since:].splitlines()
            return next((line for line in lines if all(word in line for word in words)), "")

        found: str = until(look, lambda: f"the log says {' … '.join(words)}; it said\n{self.log[since:][-3000:]}")
        return found

    def page(self, path: str, port: int = 10256, address: str = "127.0.0.1", host: str = "") -> Answer:
        """Request a page by HTTP; status 0 without a server."""
        connection = http.client.HTTPConnection(address, port, timeout=PATIENCE)
        try:
            with self.lab.enter_namespace(host or self.node_name):
                connection.connect()
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read().decode())
        except OSError as error:
            return Answer(0, {}, str(error))
        finally:
            connection.close()

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return forked.run(self.lab, self.node_name, arguments, 2 * PATIENCE)

    def vipwire(self, *arguments: str) -> str:
        """Run another command of vipwire on the node, which must succeed; return its output."""
        done = self.command(*arguments)
        done.check_returncode()
        return done.stdout + done.stderr

    def rules(self, family: Family, *, handles: bool = False) -> list[str]:
        """List vipwire's objects without parts that packets change, in pieces. Rewriting changes handles."""
        harm = self.mode.harm
        listed = self.lab.run(self.node_name, (harm.exact if handles else harm.listing)[family], check=False)
        return sorted(filter(None, map(str.strip, re.split(r"[\n,{}]", re.sub(harm.passing, "", listed.stdout)))))

    @contextlib.contextmanager
    def others(self) -> Iterator[Callable[[], str]]:
        """Add other programs' rules beside vipwire's for the block; yields their listing function."""
        others = self.mode.others
        try:
            for command in others.make:
                self.lab.run(self.node_name, command)
            yield lambda: "".join(self.lab.run(self.node_name, each).stdout for each in others.listing)
        finally:
            for command in others.remove:
                self.lab.run(self.node_name, command, check=False)

    @contextlib.contextmanager
    def obstructed(self) -> Iterator[None]:
        """Prevent the proxy from writing for the block."""
        command, line = self.mode.harm.obstacle
        with self.lab.popen(
            self.node_name, command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
            until(lambda: self.rules(Family.IPV4), "the obstacle is there")
            yield
            process.stdin.close()

    def alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"vipwire has ended:\n{self.log[-4000:]}"
        return True
