"""Builds and runs a proxy."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from vipwire.config.configuration import Config
from vipwire.config.modes import VIP_DEVICES
from vipwire.file_io.files import check_owner
from vipwire.kube.access.access import Access, load_access
from vipwire.linux.host.addresses import AddressWatch
from vipwire.process_lifecycle import event_loop
from vipwire.proxy_daemon.handover.handover import reexecute_process
from vipwire.proxy_daemon.loop import Source
from vipwire.proxy_daemon.proxy import Proxy
from vipwire.proxy_daemon.reloader import Reloader, Reread
from vipwire.proxy_daemon.start.machine import prepare_machine
from vipwire.proxy_daemon.start.modes import build_mode, build_modes_to_run, find_usable_families
from vipwire.proxy_daemon.start.record import claim_proxy, open_record


def run_proxy(config: Config, reread: Reread) -> int:
    """Run the proxy until a signal ends it. The rules stay in the kernel; the next start takes them over.

    `reread` builds the configuration again after its file changed.
    """
    if config.init_only:
        prepare_machine(config)
        return 0
    access = find_access(config)
    with claim_proxy(config) as claim:
        with prepare_proxy(config, access) as proxy:
            status = event_loop.run_in_loop(
                proxy.run(Reloader(config, proxy.config, reread, proxy.metrics, proxy.files), claim)
            )
        if proxy.changes_mode:
            claim.keep_over_exec()
            reexecute_process()
    return status


@contextlib.contextmanager
def prepare_proxy(requested: Config, access: Access | None, source: Source | None = None) -> Iterator[Proxy]:
    """Build the proxy of a configuration and prepare this machine. The caller has claimed the network namespace.

    With `source`, the proxy reads objects there. It sends Events to the API server of `access`, if there is one.
    """
    check_owner(Path(requested.state_dir), "--state-dir")  # the proxy reads drain orders and Node facts there
    with contextlib.ExitStack() as stack:
        # First the mode: a mode that cannot work here must not change the machine.
        config, modes = build_mode(requested, find_usable_families(), build_modes_to_run)
        for mode in modes.values():
            stack.callback(mode.close)
        prepare_machine(config)
        addresses = stack.enter_context(AddressWatch(VIP_DEVICES))
        proxy = Proxy(config, modes, addresses, open_record(config.state_dir), access, source)
        proxy.metrics.proxy_mode.labels(mode=config.proxy_mode, configured=requested.proxy_mode).set(1)
        yield proxy


def find_access(config: Config) -> Access | None:
    """Find the API server; None with manifests. Raise ConfigError before anything on this machine has changed."""
    if config.manifests:
        return None
    kubeconfig = config.client_connection.kubeconfig
    return load_access(Path(kubeconfig) if kubeconfig else None, config.master or None)
