"""Numbers on the command line and in files that are none: an error in one line, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from vipwire.cli.main import main

LONG = "9" * 5000  # Python's int() reads 4,300 digits
ARABIC = "\u0663\u0660"  # 30, which Python's int() reads


@pytest.mark.parametrize(
    "command",
    [
        f"dns --upstream 192.0.2.1:{LONG}",
        f"dns --upstream 192.0.2.1:0080{LONG}",
        f"dns --upstream 192.0.2.1:{ARABIC}",
        f"up --service-node-port-range {LONG}-{LONG}",
        f"up --service-node-port-range {ARABIC}-{ARABIC}",
        f"up --bgp-as 64500 --bgp-peer 192.0.2.1@{LONG}",
        f"up --bgp-as 64500 --bgp-peer 192.0.2.1@{ARABIC}",
        f"expose web --port 80 --to 192.0.2.1:{LONG}",
        f"expose web --port 80 --to 192.0.2.1:{ARABIC}",
        f"gateway --service-ports {LONG}-{LONG}",
        f"gateway --service-ports {ARABIC}-{ARABIC}",
        f"proxy --vmodule a={LONG}",
        f"proxy -v {LONG}",
        f"proxy -v {ARABIC}",
        f"proxy --healthz-bind-address 192.0.2.1:{LONG}",
        f"proxy --cluster-cidr 10.0.0.0/{LONG}",
        f"proxy --proxy-port-range {ARABIC}-{ARABIC}",
        "proxy --config {folder}/config.yaml",
        f"explain --manifests {{folder}} 192.0.2.1:{LONG}",
        f"drain --manifests {{folder}} --state-dir {{folder}} 192.0.2.1:{LONG}",
        f"top --manifests {{folder}} --interval {LONG}",
    ],
    ids=lambda command: command[:40],
)
def test_what_is_no_number_is_an_error_in_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        f"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\noomScoreAdj: {LONG}\n"
    )
    result = CliRunner().invoke(main, command.format(folder=tmp_path).split())
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), "no traceback"
    assert sum(line.startswith("error: ") for line in result.stderr.splitlines()) == 1


def test_the_proxy_that_starts_without_click_refuses_them_too() -> None:
    argv = [sys.executable, "-m", "vipwire", "proxy", "-v", LONG]
    done = subprocess.run(argv, capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1
