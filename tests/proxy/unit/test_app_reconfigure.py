"""What a running proxy takes of a changed configuration: every field, by what it says of itself."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vipwire.config.configuration import ROWS, Config, fill_dependent_fields
from vipwire.config.file import Loaded, read_config
from vipwire.config.kinds import ModuleVerbosity, ValueKind
from vipwire.config.schema import Applied, replace_at
from vipwire.errors import ConfigError
from vipwire.file_io.file_watch import FileWatch
from vipwire.model.net import Family, parse_address
from vipwire.proxy_daemon.reloader import ConfigChange, Reloader, compare_configs
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.servers import select_server_settings
from vipwire.proxy_daemon.start.machine import list_conntrack_sysctls
from vipwire.proxy_daemon.sync.node_plan import build_node_plan

FIELDS = {path: row for path, row in ROWS.items() if row.in_file}
START = fill_dependent_fields(Config(config_file="kp.yaml", cluster_cidr="10.244.0.0/16"))
OTHER: dict[str, Any] = {
    "featureGates": (("AllowServiceExternalIPs", False),),
    "logging.format": "json",
    "logging.vmodule": (ModuleVerbosity("engine", 4),),
    "bindAddress": "192.0.2.10",
    "healthzBindAddress": "127.0.0.1:1",
    "metricsBindAddress": "127.0.0.1:2",
    "mode": "iptables",
    "detectLocalMode": "NodeCIDR",
    "clusterCIDR": "10.9.0.0/16",
    "nodePortAddresses": ("192.0.2.0/24",),
    "portRange": "1-2",
    "conntrack.maxPerCore": 100_000,
    "ipvs.excludeCIDRs": ("192.0.2.0/24",),
    "showHiddenMetricsForVersion": "1.35",
}
"""Another valid value, where one more or the contrary is none."""


def another(path: str) -> Any:
    """Make a valid value that is not the default."""
    if path in OTHER:
        return OTHER[path]
    value = FIELDS[path].value(START)
    match FIELDS[path].kind:
        case ValueKind.BOOL:
            return not value
        case ValueKind.INT | ValueKind.FLOAT | ValueKind.DURATION:
            return value + 1
        case ValueKind.QUANTITY:
            return "64"
        case _:
            return "other"


def replaced(config: Config, path: str, value: Any) -> Config:
    """Set the field at a path."""
    return replace_at(config, FIELDS[path].attribute if path in FIELDS else path, value)


@pytest.mark.parametrize("path", FIELDS)
def test_a_field_counts_when_it_says(path: str) -> None:
    wanted = replaced(START, path, another(path))
    assert wanted != START
    change = compare_configs(START, START, wanted)
    match FIELDS[path].applied:
        case Applied.LIVE:
            assert change == ConfigChange(wanted, (path,), ())
        case Applied.RESTART:
            assert change == ConfigChange(START, (), (path,))
        case Applied.NEVER:
            assert (change.live, change.waiting) == ((), ())
    assert compare_configs(START, change.config, START).config == START, "it can be taken back"


SEEN: dict[str, Callable[[Config], Any]] = {
    "the log": lambda config: config.logging,
    "the kernel's settings": lambda config: (list_conntrack_sysctls(config.conntrack, 2), config.oom_score_adj),
    "the pace": lambda config: [dataclasses.replace(config, mode=mode).sync for mode in ("", "iptables", "ipvs")],
    "the servers": lambda config: [
        select_server_settings(name, config) for name in ("healthz server", "metrics server")
    ],
    "the plan": lambda config: [
        build_node_plan(each, family, "node", None, (), [parse_address("192.0.2.1")])
        for family in Family
        for mode in ("", "iptables")
        for local in {config.detect_local_mode, "BridgeInterface", "InterfaceNamePrefix"}
        for each in [dataclasses.replace(config, mode=mode, detect_local_mode=local)]
    ],
}
"""All that a running proxy makes anew of its configuration."""


@pytest.mark.parametrize("path", [path for path in FIELDS if FIELDS[path].applied is Applied.LIVE])
def test_what_is_called_live_changes_something_of_a_running_proxy(path: str) -> None:
    wanted = replaced(START, path, another(path))
    assert [what for what, look in SEEN.items() if look(wanted) != look(START)]


def test_a_mode_that_the_kernel_forced_is_no_change_and_stays() -> None:
    started = dataclasses.replace(START, mode="ipvs", proxy_mode_fallback=True)
    running = dataclasses.replace(started, mode="iptables")
    wanted = replaced(started, "clusterCIDR", "10.9.0.0/16")
    change = compare_configs(started, running, wanted)
    assert (change.config.mode, change.live, change.waiting) == ("iptables", ("clusterCIDR",), ())
    assert compare_configs(started, change.config, replaced(wanted, "mode", "nftables")).waiting == ("mode",)


def test_what_would_be_invalid_with_what_waits_waits_too() -> None:
    """Sections of modes that do not run are not judged: what is wrong in the first mode is right in another."""
    started = replaced(START, "mode", "ipvs")
    wanted = read_config(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n"
        "clusterCIDR: 10.9.0.0/16\nipvs: {syncPeriod: 1s, minSyncPeriod: 5s}\n"
    ).config
    change = compare_configs(started, started, wanted)
    assert change == ConfigChange(started, (), ("clusterCIDR", "ipvs.minSyncPeriod", "ipvs.syncPeriod", "mode"))
    assert set(compare_configs(started, started, replaced(wanted, "ipvs", started.ipvs)).live) == {"clusterCIDR"}


class File:
    """What is read each time: a configuration, or an error."""

    def __init__(self, *contents: Config | ConfigError) -> None:
        self._contents = list(contents)

    def __call__(self) -> Loaded:
        content = self._contents.pop(0)
        if isinstance(content, ConfigError):
            raise content
        return Loaded(content, ())


async def test_a_broken_file_leaves_what_runs_and_the_next_good_one_counts() -> None:
    metrics, adopted = Metrics("nftables"), list[tuple[Config, Config]]()
    other = replaced(START, "clusterCIDR", "10.9.0.0/16")
    reloader = Reloader(START, START, File(ConfigError("kp.yaml:3: no"), other, other), metrics, FileWatch())

    async def adopt(before: Config, after: Config) -> None:
        adopted.append((before, after))

    seen = []
    for _ in range(3):
        await reloader.reload(adopt, lambda _: asyncio.sleep(0, result=False))
        seen.append(metrics.registry.get_sample_value("vipwire_config_last_reload_successful"))
    assert seen == [0, 1, 1]
    assert adopted == [(START, other)]
    assert reloader.running == other


async def test_a_files_content_is_told_when_it_is_another_one(tmp_path: Path) -> None:
    """First there is no folder, then a file, then a link into a folder whose place another takes."""
    file = tmp_path / "mount" / "config"
    told = FileWatch().yield_contents(file)
    seen = [await anext(told)]
    for change in (made, touched_and_changed, linked, swapped):
        change(tmp_path)
        async with asyncio.timeout(60):
            seen.append(await anext(told))
    await told.aclose()  # type: ignore[attr-defined]
    assert seen == [None, b"one", b"two", b"three", b"four"]


def made(folder: Path) -> None:
    (folder / "mount").mkdir()
    (folder / "mount" / "config").write_text("one")


def touched_and_changed(folder: Path) -> None:
    (folder / "mount" / "config").touch()
    (folder / "mount" / "config").write_text("two")


def mounted(folder: Path, version: str, text: str) -> None:
    (folder / "mount" / version).mkdir()
    (folder / "mount" / version / "config").write_text(text)
    (folder / "mount" / "..tmp").symlink_to(version)
    (folder / "mount" / "..tmp").replace(folder / "mount" / "..data")


def linked(folder: Path) -> None:
    mounted(folder, "..1", "three")
    (folder / "mount" / "link").symlink_to("..data/config")
    (folder / "mount" / "link").replace(folder / "mount" / "config")


def swapped(folder: Path) -> None:
    mounted(folder, "..2", "four")
