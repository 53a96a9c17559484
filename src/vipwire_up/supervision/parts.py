"""The parts of `vipwire up` and `vipwire join`: each is started and supervised by itself, and ended by a signal."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from vipwire.config.configuration import Config
from vipwire.config.file import Loaded
from vipwire.errors import VipwireError, told_plainly
from vipwire.kube.access.access import Access
from vipwire.kube.contact import Health
from vipwire.linux.host.kernel import require_net_admin
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.process_lifecycle.supervision import Begun, Supervisor, Work
from vipwire.proxy_daemon.loop import Source
from vipwire.proxy_daemon.proxy import Proxy
from vipwire.proxy_daemon.reloader import Reloader
from vipwire.proxy_daemon.run import prepare_proxy
from vipwire_up.nodes.name_claim import NameTakenError


@dataclass(frozen=True, slots=True)
class Part:
    """A part that runs beside others. One that `opens` something stops the start if it cannot."""

    name: str
    work: Work
    opens: bool = False


class Parts:
    """The running parts; `working` are their tasks, which are cancelled at the end."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.working: list[asyncio.Task[None]] = []

    def start_part(self, tasks: asyncio.TaskGroup, part: Part) -> asyncio.Event:
        """Run a part. The returned event is set once it has opened its sockets, or failed with a VipwireError."""
        tried = asyncio.Event()

        async def work(begun: Begun) -> None:
            def opened() -> None:
                begun()
                tried.set()

            if not part.opens:
                tried.set()
            try:
                await part.work(opened)
            except Exception as error:
                if told_plainly(error) is None:  # else it may be a refusal to start: nothing is ready then
                    tried.set()
                raise
            tried.set()

        self.working.append(tasks.create_task(self._supervisor.keep(part.name, work, opens=part.opens)))
        return tried


class ToldSource:
    """A source that also reports problems of the announcements to the proxy, for `vipwire status`."""

    def __init__(self, source: Source, trouble: Callable[[], str]) -> None:
        self._source, self._trouble = source, trouble
        self.run = source.run

    def health(self) -> tuple[Health, ...]:
        return (*self._source.health(), Health("announcements", synced=True, error=self._trouble(), logged=True))


def wrap_coroutine(run: Callable[[], Awaitable[None]]) -> Work:
    """Wrap a coroutine function that opens nothing as a part."""
    return lambda _: run()


class PartFailures(Collector):
    """Reads a supervisor's counts at each scrape."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        text = "Failures of each part of vipwire up, and errors on single objects"
        family = CounterMetricFamily("vipwire_up_part_failures", text, labels=["part"])
        for part, count in sorted(self._supervisor.failures.items()):
            family.add_metric([part], count)
        yield family


class Ending:
    """Whether a signal has asked for the end of a command. While the proxy runs, it handles the signals."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._asked = asyncio.Event()
        self._proxy: Proxy | None = None
        self._refusal: VipwireError | None = None

    def has_programmed_rules(self) -> bool:
        """Report whether the proxy has programmed the rules of all Services once."""
        return self._proxy is not None and self._proxy.ready()

    def hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked.set)

    async def wait_for_end(self) -> None:
        """Wait for a signal. Raise the error that ends this process, if there is one."""
        await self._asked.wait()
        if self._refusal is not None:
            raise self._refusal

    def wrap_named_part(self, run: Callable[[], Awaitable[None]]) -> Work:
        """Wrap a part so that NameTakenError, when another machine has this Node's name, ends this process."""

        async def work(_: Begun) -> None:
            try:
                await run()
            except NameTakenError as error:
                self._refusal = error
                self._asked.set()

        return work

    async def run_proxy(
        self, config: Config, source: Source, access: Access | None, supervisor: Supervisor, begun: Begun
    ) -> None:
        """Run the proxy until a signal or cancelled, then handle signals again."""
        try:
            require_net_admin(self._command)
            cyclic_garbage.collect_rarely()
            with prepare_proxy(config, access, source) as proxy:
                self._proxy = proxy
                begun()
                proxy.metrics.registry.register(PartFailures(supervisor))
                await proxy.run(
                    Reloader(config, proxy.config, lambda: Loaded(config, ()), proxy.metrics, proxy.files)
                )
            self._asked.set()  # a signal has ended the proxy
        finally:
            self.hear_signals()
