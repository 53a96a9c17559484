"""Gathers what `judge` judges: kube-proxy's configuration, the kernel, Services, what vipwire's mode will serve.

Each source may be missing: what that was is said, and the rest is judged.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from vipwire import __version__
from vipwire.config.configuration import Config
from vipwire.errors import ConfigError, VipwireError
from vipwire.inspect.check.facts import lacks
from vipwire.inspect.leave_ipvs.judge import IpvsState, Leaving
from vipwire.inspect.leave_ipvs.kernel import read_kernel
from vipwire.inspect.node.source import api_access, node_name, read_objects
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.objects import ObjectClient
from vipwire.linux.host.addresses import global_addresses, read_addresses
from vipwire.modes.ipvs.objects.names import DEVICE
from vipwire.proxy.handover.configured import Configured
from vipwire.proxy.handover.kube_proxy import configured, find_kube_proxy, from_config_map
from vipwire.proxy.start.modes import families
from vipwire.proxy.start.record import recorded_node
from vipwire.proxy.sync.node_plan import Known, planned_node
from vipwire.state.store import Store

_PATH: Final = "/api/v1/namespaces/kube-system/configmaps/kube-proxy"
_WHERE: Final = "the ConfigMap kube-system/kube-proxy"
_PATIENCE: Final = 10.0

T = TypeVar("T")


def look(config: Config) -> tuple[Leaving, list[str]]:
    """Gather everything; return it with what could not be had."""
    obstacles: list[str] = []

    def tried(what: str, ask: Callable[[], T], otherwise: T) -> T:
        try:
            return ask()
        except (VipwireError, OSError) as error:
            obstacles.append(f"{what}: {error}")
            return otherwise

    kernel = tried("the kernel", read_kernel, IpvsState(obstacle="it cannot be read"))
    if kernel.obstacle and not obstacles:
        obstacles.append(f"the kernel: {kernel.obstacle}")
    found = configured(find_kube_proxy())
    if found is None:
        found = tried("kube-proxy's configuration", lambda: config_map(config), None)
    store = tried("Services", lambda: read_objects(config), Store())
    machine = global_addresses(item for item in read_addresses() if item.interface != DEVICE)
    name = node_name(config)
    known = Known(recorded_node(config.state_dir, name))
    plans = {family: planned_node(config, family, name, store, machine, known=known) for family in families()}
    leaving = Leaving(
        config,
        kernel,
        found,
        tuple(store.services.values()),
        {family: plan.node_port_addresses for family, plan in plans.items()},
        lacks(config, config.proxy_mode),
    )
    return leaving, obstacles


def config_map(config: Config) -> Configured | None:
    """Ask the API server for the ConfigMap of kubeadm; None where objects come from manifests. Raise ConfigError."""
    if config.manifests:
        return None
    return Configured(_WHERE, from_config_map(asyncio.run(_asked(config)), _WHERE))


async def _asked(config: Config) -> object:
    access = api_access(config)
    try:
        async with ObjectClient(access, f"vipwire/{__version__} (linux)", timeout=_PATIENCE) as client:
            return await client.ask("GET", _PATH)
    except ApiError as error:
        raise ConfigError(f"{_WHERE}: {access.server} answers {error.code}") from error
    except UnreachableError as error:
        raise ConfigError(f"{_WHERE}: {error}") from error
