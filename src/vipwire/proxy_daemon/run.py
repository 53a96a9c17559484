"""Runs a proxy, alone or inside another program's loop, and removes the rules of proxies."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.registry import Collector

from vipwire.config.configuration import Config
from vipwire.config.file import Loaded
from vipwire.file_io.files import check_owner
from vipwire.kube.access.access import Access, load_access
from vipwire.linux.host.addresses import AddressWatch
from vipwire.linux.host.kernel import capabilities, require_net_admin
from vipwire.logging import log
from vipwire.process_lifecycle import cyclic_garbage, event_loop
from vipwire.proxy_daemon.handover.handover import reexec
from vipwire.proxy_daemon.loop import Source
from vipwire.proxy_daemon.proxy import Proxy
from vipwire.proxy_daemon.reloader import Reloader, Reread
from vipwire.proxy_daemon.start.machine import prepare_machine
from vipwire.proxy_daemon.start.modes import build_mode, build_to_run, families, needs_net_admin, vip_devices
from vipwire.proxy_daemon.start.record import claim_proxy, open_record, require_no_proxy


def run_proxy(config: Config, reread: Reread) -> int:
    """Run the proxy until a signal ends it. The rules stay in the kernel; the next start takes them over.

    `reread` builds the configuration again after its file changed.
    """
    if config.init_only:
        prepare_machine(config)
        return 0
    access = find_access(config)
    with claim_proxy(config) as claim:
        with _prepare(config, access) as proxy:
            status = event_loop.run(
                proxy.run(Reloader(config, proxy.config, reread, proxy.metrics, proxy.files), claim)
            )
        if proxy.changes_mode:
            claim.keep_over_exec()
            reexec()
    return status


async def run_beside(
    command: str,
    config: Config,
    source: Source,
    access: Access | None,
    begun: Callable[[Proxy], None],
    counted: Collector,
) -> None:
    """Run the proxy in a shared loop, with the caller's source of objects, until a signal or cancellation.

    Events go to the API server of `access`, if there is one.
    The proxy calls `begun` once this machine can run it and exposes `counted` with its metrics. The caller must have
    claimed this network namespace (`proxy.start.record`). Errors name `command`.
    """
    require_net_admin(command)
    cyclic_garbage.look_rarely()
    with _prepare(config, access, source) as proxy:
        begun(proxy)
        proxy.metrics.registry.register(counted)
        await proxy.run(Reloader(config, proxy.config, lambda: Loaded(config, ()), proxy.metrics, proxy.files))


@contextlib.contextmanager
def _prepare(requested: Config, access: Access | None, source: Source | None = None) -> Iterator[Proxy]:
    check_owner(Path(requested.state_dir), "--state-dir")  # the proxy reads drain orders and Node facts there
    with contextlib.ExitStack() as stack:
        # First the mode: a mode that cannot work here must not change the machine.
        config, modes = build_mode(requested, families(), build_to_run)
        for mode in modes.values():
            stack.callback(mode.close)
        prepare_machine(config)
        addresses = stack.enter_context(AddressWatch(vip_devices()))
        proxy = Proxy(config, modes, addresses, open_record(config.state_dir), access, source)
        proxy.metrics.proxy_mode.labels(mode=config.proxy_mode, configured=requested.proxy_mode).set(1)
        yield proxy


def find_access(config: Config) -> Access | None:
    """Find the API server; None with manifests. Raise ConfigError before anything on this machine has changed."""
    if config.manifests:
        return None
    kubeconfig = config.client_connection.kubeconfig
    return load_access(Path(kubeconfig) if kubeconfig else None, config.master or None)


def run_cleanup(config: Config) -> int:
    """Remove everything of vipwire's, of every mode and family.

    Return 1 if something stays for lack of a program. Raise AlreadyRunningError if a vipwire proxy runs. Objects
    under the names of a running kube-proxy stay, unless the configuration asks to remove all.
    """
    from vipwire.proxy_daemon.handover import cleanup, kube_proxy  # noqa: PLC0415

    if needs_net_admin(config):
        require_net_admin("vipwire cleanup")
    require_no_proxy("vipwire cleanup")
    rules = "CAP_NET_ADMIN" in capabilities()
    beside = kube_proxy.find_kube_proxy() if rules and not config.cleanup_all else None
    stuck = False
    for each in cleanup.clean_up(families(), rules=rules, beside=beside):
        told = {"mode": each.mode, "ip_family": each.family.value, "what": each.what}
        told = {name: value for name, value in told.items() if value}
        if each.left:
            log.warning("left", **told, reason=each.left, remedy=each.remedy)
            stuck = stuck or beside is None
        else:
            log.info("removed", **told)
    return int(stuck)
