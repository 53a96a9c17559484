"""Every flag of `vipwire proxy`: those that the rows of the configuration have, and those that set no field.

The names are kube-proxy's, those of 1.36 and those of every version before it. A flag whose meaning is gone is
accepted with a warning: an old command line keeps working and says what in it does nothing.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vipwire.config.configuration import HEALTHZ_PORT, METRICS_PORT, ROWS, Config
from vipwire.config.schema import Group, Setting

_WINDOWS: Final = "only has a meaning on Windows"
_KLOG: Final = "log files and streams are the container runtime's business since Kubernetes 1.26"
_CLOUD: Final = "no credentials of a cloud are used"
_NUMBER, _SWITCH, _TEXT = 0, False, ""


def _port(server: str, port: int) -> Setting:
    text = f"Deprecated: the port of --{server}-bind-address; 0 disables the server."
    warning = f"is deprecated: use --{server}-bind-address"
    return Setting(f"{server}-port", text, port, group=Group.SERVERS, warning=warning)


def _old(name: str, default: object, why: str) -> Setting:
    return Setting(name, default=default, warning=f"has no effect: {why}", beside_file=True)


_LONE: Final[tuple[Setting, ...]] = (
    _port("healthz", HEALTHZ_PORT),
    _port("metrics", METRICS_PORT),
    Setting("help", "Show this text, and exit.", group=Group.PROCESS, short="h", beside_file=True),
    Setting("version", "Show the version, and exit.", group=Group.PROCESS, beside_file=True),
    replace(
        ROWS["cleanup"], name="cleanup-iptables", text="", group=Group.OLD, warning="is the old name of --cleanup"
    ),
    _old("cleanup-ipvs", _SWITCH, "--cleanup removes what vipwire has put into IPVS, and only that"),
    _old("conntrack-max", _NUMBER, "use --conntrack-max-per-core and --conntrack-min"),
    _old("google-json-key", _TEXT, _CLOUD),
    _old("azure-container-registry-config", _TEXT, _CLOUD),
    _old("resource-container", _TEXT, "the container runtime decides about cgroups"),
    _old("boot-id-file", _TEXT, "nothing reads it"),
    _old("machine-id-file", _TEXT, "nothing reads it"),
    _old("windows-service", _SWITCH, _WINDOWS),
    _old("network-name", _TEXT, _WINDOWS),
    _old("source-vip", _TEXT, _WINDOWS),
    _old("enable-dsr", _SWITCH, _WINDOWS),
    _old("root-hnsendpoint-name", _TEXT, _WINDOWS),
    _old("forward-healthcheck-vip", _SWITCH, _WINDOWS),
    _old("logtostderr", _SWITCH, _KLOG),
    _old("alsologtostderr", _SWITCH, _KLOG),
    _old("stderrthreshold", _TEXT, _KLOG),
    _old("log-dir", _TEXT, _KLOG),
    _old("log-file", _TEXT, _KLOG),
    _old("log-file-max-size", _NUMBER, _KLOG),
    _old("log-backtrace-at", _TEXT, _KLOG),
    _old("add-dir-header", _SWITCH, _KLOG),
    _old("skip-headers", _SWITCH, _KLOG),
    _old("skip-log-headers", _SWITCH, _KLOG),
    _old("one-output", _SWITCH, _KLOG),
)


def _collect() -> Iterator[Setting]:
    """Yield the flags as `--help` lists them. Of a flag that several fields have, the last one's row is told."""
    rows = [row for row in (*ROWS.values(), *_LONE) if row.name]
    paths: dict[str, tuple[str, ...]] = {}
    for row in rows:
        paths[row.name] = (*paths.get(row.name, ()), *filter(None, (row.path,)))
    last = {row.name: row for row in rows}
    order = list(Group)
    for row in sorted(last.values(), key=lambda row: (order.index(row.group), not row.first)):
        yield replace(row, paths=paths[row.name])


FLAGS: Final[dict[str, Setting]] = {row.name: row for row in _collect()}
REMOVED: Final = {"userspace-workers": "one process relays the connections of an IP family; leave the flag out"}
"""Flags of earlier versions, and what to do in their place."""
SHORT: Final[dict[str, Setting]] = {flag.short: flag for flag in FLAGS.values() if flag.short}
FLAG_OF_PATH: Final[dict[str, str]] = {
    path: f"--{flag.name}" for flag in reversed(FLAGS.values()) for path in flag.paths if flag.group is not Group.OLD
}


def flag_text(flag: Setting, config: Config | None = None) -> str:
    """Print a flag's value in a configuration (the default without one) as it would be typed."""
    return flag.kind.text(flag.default if config is None or not flag.paths else flag.value(config))
