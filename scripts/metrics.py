"""Writes docs/metrics.md from the metrics themselves: `make docs`. A test compares the file."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from vipwire.config.modes import list_mode_names
from vipwire.config.sections import Series
from vipwire.proxy_daemon.serve.metrics import KernelCounter, Metrics
from vipwire.proxy_daemon.serve.service_metrics import ServiceMetrics

PATH = Path(__file__).parent.parent / "docs" / "metrics.md"
MODES = list_mode_names()

_INTRODUCTION = """\
# Pages and metrics of a proxy

A proxy answers on two HTTP ports, with kube-proxy's port numbers, paths, codes and bodies.
[configuration.md](configuration.md) has the flags for other ports.

| port | path | answers |
|---|---|---|
| 10256 | `/healthz` | 200; 503 when a change has waited for twice the sync period, or the Node is being deleted |
| 10256 | `/livez` | 200; 503 when a change has waited for twice the sync period |
| 10256 | `/readyz` | 200 once everything that existed at the start is in the kernel; kube-proxy has no such page |
| 10249 | `/metrics`, `/metrics/slis` | the metrics below; metrics of the health check itself |
| 10249 | `/proxyMode` | the mode that runs |
| 10249 | `/configz` | the configuration that runs, as JSON |
| 10249 | `/flagz`, `/statusz` | every flag's value; version and uptime; by feature gates of these names |
| 10249 | `/debug/stacks`, `/debug/profile?seconds=5` | with `--profiling`: stacks of all threads; a profile |
| 10249 | `PUT /debug/flags/v` | with `--profiling`: changes the log level |

`healthCheckNodePort` of a Service answers as kube-proxy's does.

## Metrics

vipwire's own metrics begin with `vipwire_`. kube-proxy's metrics have kube-proxy's names, labels and meanings, which
`/metrics` prints; the last table lists them. Names with `_total` are counters, those with `_seconds` or `_bytes`
histograms, others gauges; exceptions have their type in parentheses. Where *modes* is empty, every mode has the
metric. `make docs` writes these tables from the code.

| metric, labels | modes | meaning |
|---|---|---|
"""
_PER_SERVICE = """\

`--counters=services`, the default, gives the metrics of Services, `--counters=endpoints` also of endpoints.
At most `--counters-limit` Service ports, endpoints and refusals get series of their own. A mode that does not know a
number leaves it out.

| metric, labels | meaning |
|---|---|
"""
_OF_KUBE_PROXY = """\

## Metrics of kube-proxy

| modes | metrics |
|---|---|
"""


class Row(NamedTuple):
    """A metric's description."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def document() -> str:
    modes: dict[Row, list[str]] = {}
    for mode in MODES:
        for row in _rows(Metrics(mode)):
            modes.setdefault(row, []).append(mode)
    lines = [
        _line(row, ", ".join(found) if len(found) < len(MODES) else "", row.text)
        for row, found in sorted(modes.items())
        if row.name.startswith("vipwire_")
    ]
    counted = [_line(row, row.text) for row in sorted(_counted())]
    theirs: dict[str, list[str]] = {}
    for row, found in sorted(modes.items()):
        if row.name.startswith(("kubeproxy_", "rest_client_")):
            theirs.setdefault(", ".join(found) if len(found) < len(MODES) else "all", []).append(f"`{row.name}`")
    of_kube_proxy = [f"| {found} | {', '.join(names)} |\n" for found, names in theirs.items()]
    return "".join((_INTRODUCTION, *lines, _PER_SERVICE, *counted, _OF_KUBE_PROXY, *of_kube_proxy))


def _rows(metrics: Metrics) -> Iterator[Row]:
    exposed = metrics.registry._collector_to_names  # noqa: SLF001 - the library does not tell otherwise
    for attribute in vars(metrics).values():
        if not isinstance(attribute, MetricWrapperBase | KernelCounter) or attribute not in exposed:
            continue
        (family,) = attribute.describe()
        yield _row(family, getattr(attribute, "_labelnames", ()))


def _counted() -> Iterator[Row]:
    for family in ServiceMetrics(Series.ENDPOINTS).collect():
        yield _row(family, getattr(family, "_labelnames", ()))


def _row(family: Metric, labels: tuple[str, ...]) -> Row:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return Row(name, family.type, tuple(labels), family.documentation.partition("] ")[2])


def _line(row: Row, *cells: str) -> str:
    labels = f"{{{','.join(row.labels)}}}" if row.labels else ""
    exception = "" if row.type == _usual_type(row.name) else f" ({row.type})"
    line = " | ".join((f"`{row.name}{labels}`{exception}", *cells))
    return f"| {line} |\n".replace("|  |", "| |")


def _usual_type(name: str) -> str:
    if name.endswith("_total"):
        return "counter"
    return "histogram" if name.endswith(("_seconds", "_bytes")) else "gauge"


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
