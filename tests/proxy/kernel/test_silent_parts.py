"""Each part is taken away while views are open: the API server, the proxy, the kernel's rights, the page's server.

A real `vipwire up`, proxy, page, browser, `top`, `status -w` and `trace`: all say what is silent, and since when.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from tests.fakes.browser import Page, chromium
from tests.fakes.waiting import until

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.demo import objects

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
NODE, PORT = "node-1", 10247
PATIENCE = 60.0
BANNER = "document.querySelector('#trouble').hidden ? '' : document.querySelector('#trouble').textContent"


@dataclass
class Stage:
    """A lab's node, the folder of its files, and the running programs by name."""

    lab: Lab
    folder: Path
    running: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def start(self, name: str, *command: str, before: tuple[str, ...] = ()) -> None:
        said = (self.folder / f"{name}.out").open("a")
        words = [*before, sys.executable, "-m", "vipwire", *command]
        environment = os.environ | {"COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
        self.running[name] = self.lab.popen(
            NODE, words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, text=True, env=environment
        )
        said.close()

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(PATIENCE)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def up(self) -> None:
        flags = (
            "--no-proxy",
            "--no-dns",
            "--node-name",
            NODE,
            "--secure-port",
            "16443",
            "--bind-address",
            "127.0.0.1",
        )
        self.start("up", "up", "--data-dir", str(self.folder / "up"), *flags)

    def proxy(self) -> None:
        self.start("proxy", "proxy", *self.flags(), "--healthz-port=0", "--metrics-port=0", "--oom-score-adj=0")

    def flags(self) -> tuple[str, ...]:
        kubeconfig = self.folder / "up" / "admin.kubeconfig"
        state, pods = self.folder / "state", f"--cluster-cidr={objects.POD_CIDRS}"
        return (f"--kubeconfig={kubeconfig}", f"--state-dir={state}", f"--hostname-override={NODE}", pods)

    def view(self, before: tuple[str, ...] = ()) -> None:
        self.start("view", "view", *self.flags(), f"--view-bind-address=127.0.0.1:{PORT}", before=before)
        self.until("view", "Serving at")

    def until(self, name: str, text: str, since: int = 0) -> None:
        until(lambda: text in self.said(name)[since:], lambda: f"{name} does not say {text!r}:\n{self.said(name)}")


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    with Lab() as lab:
        stage = Stage(lab, folder)
        try:
            stage.up()
            stage.until("up", "API server at")
            stage.proxy()
            stage.until("proxy", "msg=synced")
            yield stage
        finally:
            for name in list(stage.running):
                with contextlib.suppress(ProcessLookupError):
                    stage.running[name].send_signal(signal.SIGCONT)
                stage.end(name, signal.SIGKILL)


async def says(page: Page, text: str, grey: str) -> None:
    """Wait until the banner has a text, and what depends on the part is grey."""
    await page.until(f"({BANNER}).includes({text!r}) && document.body.classList.contains({grey!r})")
    assert await page.value("document.querySelector('#live').textContent") != "live"


async def recovers(page: Page) -> None:
    await page.until(f"({BANNER}) === '' && document.querySelector('#live').textContent === 'live'")


def following(stage: Stage) -> None:
    for name, words in (("top", ("top", "--interval=0.5")), ("status", ("status", "-w", "--interval=0.5"))):
        stage.start(name, *words, *stage.flags())
    stage.start("trace", "trace", *stage.flags())
    stage.until("top", "the last")
    stage.until("status", "default/kubernetes")
    stage.until("trace", "Following")


async def without_the_api(stage: Stage, page: Page) -> None:
    marks = {name: len(stage.said(name)) for name in ("top", "status", "trace")}
    stage.end("up", signal.SIGKILL)
    await says(page, "objects: silent since", "silent-objects")
    for name, mark in marks.items():
        await asyncio.to_thread(stage.until, name, "objects: silent since", mark)
    marks = {name: len(stage.said(name)) for name in marks}
    stage.up()
    await recovers(page)
    await asyncio.to_thread(stage.until, "trace", "all parts answer again", marks["trace"])


async def without_the_proxy(stage: Stage, page: Page) -> None:
    marks = {name: len(stage.said(name)) for name in ("top", "status", "trace")}
    stage.end("proxy", signal.SIGKILL)
    await says(page, "proxy: silent since", "silent-proxy")
    assert "killed or crashed" in await page.value(BANNER)
    for name, mark in marks.items():
        await asyncio.to_thread(stage.until, name, "proxy: silent since", mark)
    stage.proxy()
    await recovers(page)


async def without_the_server(stage: Stage, page: Page) -> None:
    """The page's server stops answering without closing a connection, then goes, then comes back."""
    stage.running["view"].send_signal(signal.SIGSTOP)
    await says(page, "view: this page's server is silent since", "silent-view")
    stage.running["view"].send_signal(signal.SIGCONT)
    await recovers(page)
    stage.end("view", signal.SIGKILL)
    await says(page, "view: this page's server is silent since", "silent-view")


async def without_rights(stage: Stage, page: Page) -> None:
    stage.view(before=("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"))
    await says(page, "kernel IPv4: silent since", "silent-kernel")
    assert "CAP_NET_ADMIN" in await page.value(BANNER)
    badges = "[...document.querySelectorAll('.family .badge')].map((each) => each.textContent)"
    assert await page.value(badges) == ["IPv4 unknown", "IPv6 unknown"]


async def test_a_page_and_terminals_say_which_part_is_silent(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.view()
        following(stage)
        with stage.lab.enter_namespace(NODE):
            async with chromium() as page:
                await page.go(f"http://127.0.0.1:{PORT}/")
                await page.until("document.querySelectorAll('.row').length >= 1")
                await recovers(page)
                await without_the_api(stage, page)
                await without_the_proxy(stage, page)
                await without_the_server(stage, page)
                await without_rights(stage, page)


def test_status_without_the_api_shows_the_kernel_and_the_proxy(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.end("up", signal.SIGKILL)
        command = [sys.executable, "-m", "vipwire", "status", *stage.flags(), "-o", "yaml"]
        done = stage.lab.run(NODE, command, check=False, timeout=PATIENCE)
        document = yaml.safe_load(done.stdout)
        assert done.returncode == 1
        assert [each["part"] for each in document["silent"]] == ["objects"]
        assert document["proxy"]["state"] == "running"
        assert all(family["observedObjects"] > 0 for family in document["families"])
