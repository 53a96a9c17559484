"""The alerts, by Prometheus' promtool: each fires when what it tells of is so, and none where all is well."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from tests.project.deployed import DEPLOY, ROOT

pytestmark = pytest.mark.slow

PROMTOOL = ROOT / ".venv/tools/promtool"
RULES = yaml.safe_load((DEPLOY / "monitoring/alerts.yaml").read_text(encoding="utf-8"))["spec"]
NAMES = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
NODE = 'job="kube-proxy", instance="node-1"'
FAMILY = f'{NODE}, ip_family="IPv4"'
WEB = 'service="web", namespace="default", port="http"'
REFUSED = f'vipwire_refused_packets_total{{{NODE}, reason="no-endpoints", {WEB}}}'
MINUTES = 240
"""How long each case is: longer than any alert waits."""


class Case(NamedTuple):
    """Series as promtool writes them that make an alert fire, and a piece of what it then says."""

    series: dict[str, str]
    says: str


def steady(value: float) -> str:
    return f"{value}x{MINUTES}"


def growing(step: float) -> str:
    return f"0+{step}x{MINUTES}"


WELL = {
    f"up{{{NODE}}}": steady(1),
    f"kubeproxy_sync_proxy_rules_last_timestamp_seconds{{{FAMILY}}}": growing(60),
    f"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{{{FAMILY}}}": steady(3),
    f"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{{{FAMILY}}}": steady(0),
    f"vipwire_isolated_services{{{FAMILY}}}": steady(0),
    f"vipwire_kernel_drift_repairs_total{{{FAMILY}}}": steady(2),
    f'kubeproxy_network_programming_duration_seconds_bucket{{{NODE}, le="1"}}': growing(10),
    f'kubeproxy_network_programming_duration_seconds_bucket{{{NODE}, le="60"}}': growing(10),
    f'kubeproxy_network_programming_duration_seconds_bucket{{{NODE}, le="+Inf"}}': growing(10),
    f'vipwire_source_errors_total{{{NODE}, resource="services"}}': steady(7),
    f"vipwire_config_last_reload_successful{{{NODE}}}": steady(1),
    f"vipwire_config_fields_awaiting_restart{{{NODE}}}": steady(0),
    f"vipwire_frontend_conflicts{{{NODE}}}": steady(0),
    f'vipwire_object_problems{{{NODE}, kind="Service"}}': steady(0),
    f'kubernetes_build_info{{{NODE}, git_version="v1"}}': steady(1),
    REFUSED: growing(2),
    f"vipwire_counters_left_out{{{NODE}}}": steady(0),
}

FIRING = {
    "VipwireDown": Case({f"up{{{NODE}}}": steady(0)}, "No service proxy answers"),
    "VipwireNodeDown": Case({f"up{{{NODE}}}": steady(0)}, "The service proxy of node-1"),
    "VipwireNotSyncing": Case(
        {f"kubeproxy_sync_proxy_rules_last_timestamp_seconds{{{FAMILY}}}": steady(0)}, "node-1 (IPv4)"
    ),
    "VipwireSyncFails": Case(
        {f"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{{{FAMILY}}}": growing(1)}, "again and again"
    ),
    "VipwireServiceRefused": Case({f"vipwire_isolated_services{{{FAMILY}}}": steady(2)}, "refuses 2 Services"),
    "VipwireRulesChangedByOthers": Case({f"vipwire_kernel_drift_repairs_total{{{FAMILY}}}": growing(1)}, "node-1"),
    "VipwireSlow": Case(
        {f'kubeproxy_network_programming_duration_seconds_bucket{{{NODE}, le="1"}}': steady(0)},
        "59.41s to get into the kernel of node-1",
    ),
    "VipwireApiServerFails": Case(
        {f'vipwire_source_errors_total{{{NODE}, resource="services"}}': growing(3)}, "cannot list or watch services"
    ),
    "VipwireConfigurationUnusable": Case(
        {f"vipwire_config_last_reload_successful{{{NODE}}}": steady(0)}, "file of node-1 cannot be used"
    ),
    "VipwireRestartNeeded": Case(
        {f"vipwire_config_fields_awaiting_restart{{{NODE}}}": steady(1)}, "1 changed fields"
    ),
    "VipwireFrontendConflict": Case({f"vipwire_frontend_conflicts{{{NODE}}}": steady(1)}, "1 addresses and ports"),
    "VipwireInvalidObjects": Case(
        {f'vipwire_object_problems{{{NODE}, kind="Service"}}': steady(4)}, "4 fields of objects of kind Service"
    ),
    "VipwireVersionsDiffer": Case(
        {'kubernetes_build_info{job="kube-proxy", instance="node-2", git_version="v2"}': steady(1)},
        "different versions",
    ),
    "VipwireClientsFindNoEndpoints": Case(
        {REFUSED: growing(120)},
        "Clients of default/web http",
    ),
    "VipwireCountersLeftOut": Case({f"vipwire_counters_left_out{{{NODE}}}": steady(5)}, "On node-1 5 Service ports"),
}


def promtool(*arguments: str | Path, succeeds: bool = True) -> str:
    done = subprocess.run([str(PROMTOOL), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is succeeds, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the rules as a Prometheus without the operator takes them."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(RULES), encoding="utf-8")
    return path


def test_prometheus_takes_the_rules(rules: Path) -> None:
    assert f"{len(NAMES)} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", rules)


def judge(rules: Path, *cases: tuple[dict[str, str], list[str]], succeeds: bool = True) -> str:
    """Expect that none of the alerts named beside some series fires; give what promtool says."""
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": f"{MINUTES}m", "alertname": name, "exp_alerts": []} for name in names],
        }
        for series, names in cases
    ]
    path = rules.parent / "cases.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [rules.name], "tests": tests}, width=1000), encoding="utf-8")
    return promtool("test", "rules", path, succeeds=succeeds)


def test_no_alert_fires_on_a_healthy_node(rules: Path) -> None:
    judge(rules, (WELL, NAMES))


def test_every_alert_fires_and_names_what_is_wrong(rules: Path) -> None:
    assert set(FIRING) == set(NAMES)
    said = judge(rules, *((WELL | case.series, [name]) for name, case in FIRING.items()), succeeds=False)
    told = dict(re.findall(r"alertname: (\w+), time: (.*?)(?=alertname: |\Z)", said, re.DOTALL))
    assert [name for name, case in FIRING.items() if case.says not in told.get(name, "")] == [], said
