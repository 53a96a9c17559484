"""The command line as an operator meets it: help, version, errors, what is run."""

import subprocess
import sys
import types
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.fakes.golden_text import matches_golden

from vipwire import __version__
from vipwire.cli.main import main
from vipwire.config.configuration import Config
from vipwire.config.file import Loaded, load_config
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.proxy_daemon.reloader import Reread
from vipwire.proxy_daemon.run import run_proxy


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


class Wiring(types.ModuleType):
    """Stands in for the modules that run the proxy and the clean-up: remembers what it was given."""

    def __init__(self) -> None:
        super().__init__("vipwire.proxy_daemon.run")
        self.ran: list[tuple[str, Config]] = []
        self.error: Exception | None = None

    def run_proxy(self, config: Config, reread: Reread) -> int:
        assert reread().config == config
        return self._run("proxy", config)

    def run_cleanup(self, config: Config) -> int:
        return self._run("cleanup", config)

    def _run(self, what: str, config: Config) -> int:
        self.ran.append((what, config))
        if self.error:
            raise self.error
        return 3


@pytest.fixture
def wiring(monkeypatch: pytest.MonkeyPatch) -> Wiring:
    fake = Wiring()
    monkeypatch.setitem(sys.modules, "vipwire.proxy_daemon.run", fake)
    monkeypatch.setitem(sys.modules, "vipwire.proxy_daemon.cleanup", fake)
    return fake


def test_the_help_of_the_proxy_is_the_recorded_one(runner: CliRunner) -> None:
    result = runner.invoke(main, ["proxy", "--help"], prog_name="vipwire")
    assert result.exit_code == 0
    assert matches_golden("proxy-help.txt", result.output)


def test_the_help_names_every_command_without_importing_other_parts(runner: CliRunner) -> None:
    result = runner.invoke(main, ["--help"], prog_name="vipwire")
    assert matches_golden("help.txt", result.output)


@pytest.mark.parametrize("group", ["lab", "store", "token", "ingress", "gateway", "install"])
def test_what_a_group_says_of_its_commands_is_not_cut(runner: CliRunner, group: str) -> None:
    result = runner.invoke(main, [group, "--help"], prog_name="vipwire", terminal_width=80)
    assert [line for line in result.output.splitlines() if line.endswith("...") and "Usage:" not in line] == []


@pytest.mark.parametrize(
    "arguments", [["--version"], ["version"], ["proxy", "--version"], ["proxy", "--version=raw"]]
)
def test_the_version_is_shown(runner: CliRunner, arguments: list[str]) -> None:
    result = runner.invoke(main, arguments)
    assert (result.exit_code, result.output) == (0, f"vipwire {__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["man", "proxy"], ["proxy", "--userspace-workers=2"], ["lab", "compare", "--html=page.html"]]
)
def test_a_flag_or_command_of_an_earlier_version_is_refused_by_its_name(
    runner: CliRunner, arguments: list[str]
) -> None:
    result = runner.invoke(main, arguments)
    assert result.exit_code == 2
    assert "was removed: " in result.output


def test_the_module_runs_like_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "vipwire", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vipwire {__version__}\n", "")


def test_help_imports_nothing_that_is_heavy() -> None:
    heavy = ("aiohttp", "yaml", "prometheus_client", "lightkube", "pyroute2", "vipwire_lab.cli")
    program = (
        "import sys\nfrom vipwire.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_the_proxy_runs_with_the_configuration_and_its_exit_code_counts(runner: CliRunner, wiring: Wiring) -> None:
    result = runner.invoke(main, ["proxy", "--proxy-mode=ipvs", "--init-only", "--nodeport-addresses=primary"])
    assert result.exit_code == 3
    ((what, config),) = wiring.ran
    assert (what, config.mode, config.init_only) == ("proxy", "ipvs", True)


@pytest.mark.parametrize("arguments", [["cleanup"], ["proxy", "--cleanup"], ["proxy", "--cleanup-iptables"]])
def test_cleaning_up_has_three_names(runner: CliRunner, wiring: Wiring, arguments: list[str]) -> None:
    result = runner.invoke(main, arguments)
    assert result.exit_code == 3
    assert [what for what, _ in wiring.ran] == ["cleanup"]


def test_warnings_go_to_the_log(runner: CliRunner, wiring: Wiring) -> None:
    result = runner.invoke(main, ["proxy", "--enable-dsr"])
    assert 'level=warning msg="--enable-dsr has no effect: only has a meaning on Windows"\n' in result.stderr
    assert len(wiring.ran) == 1


def test_each_configuration_error_is_one_line_and_the_exit_code_is_2(runner: CliRunner, wiring: Wiring) -> None:
    result = runner.invoke(main, ["proxy", "--oom-score-adj=5000", "--bind-address=x"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        'error: KubeProxyConfiguration.bindAddress: Invalid value: "x": must be an IP address (--bind-address)',
        (
            "error: KubeProxyConfiguration.oomScoreAdj: Invalid value: 5000: must be within the range [-1000, 1000] "
            "(--oom-score-adj)"
        ),
    ]
    assert wiring.ran == []


def test_an_unknown_flag_is_one_line_and_the_exit_code_is_2(runner: CliRunner) -> None:
    result = runner.invoke(main, ["proxy", "--proxymode=x"])
    assert (result.exit_code, result.stderr) == (2, "error: unknown flag: --proxymode (did you mean --proxy-mode?)\n")


def test_flags_in_the_environment_count_where_they_are_not_given(
    runner: CliRunner, wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIPWIRE_FLAGS", "--cluster-cidr=10.0.0.0/8 --oom-score-adj=-5 --nodeport-addresses=primary")
    runner.invoke(main, ["proxy", "--oom-score-adj=-7"])
    ((_, config),) = wiring.ran
    assert (config.cluster_cidr, config.oom_score_adj) == ("10.0.0.0/8", -7)


@pytest.mark.parametrize("command", ["proxy", "status", "diff"])
def test_wrong_flags_in_the_environment_are_told(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for flags in ("--clustercidr=1", "'", "stray"):
        monkeypatch.setenv("VIPWIRE_FLAGS", flags)
        result = runner.invoke(main, [command])
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith("error: VIPWIRE_FLAGS: ")


@pytest.mark.parametrize(
    "arguments",
    [["proxi"], ["proxy", "--x"], ["status", "--x"], ["up", "--x"], ["expose"], ["lab", "up", "--x"], ["dns", "--x"]],
)
def test_a_wrong_command_line_ends_with_2_in_one_style(runner: CliRunner, arguments: list[str]) -> None:
    result = runner.invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["status", "--manifests=/nowhere"], 1),
        (["plan", "--manifests=/nowhere"], 1),
        (["diff", "--manifests=/nowhere"], 2),
        (["expose", "web", "--port=80", "--to=10.0.0.1:80", "--kubeconfig=/nowhere"], 1),
        (["store", "restore", "--data-dir=/nowhere", "/nowhere/copy"], 1),
        (["lab", "show", "--name=nobody-has-this"], 1),
    ],
)
def test_a_failure_ends_with_1_or_with_2_where_1_is_an_answer(
    runner: CliRunner, arguments: list[str], status: int
) -> None:
    result = runner.invoke(main, arguments)
    assert result.exit_code == status
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_an_unknown_command_says_which_is_near(runner: CliRunner) -> None:
    assert "No such command 'statsu'. Did you mean 'status'?" in runner.invoke(main, ["statsu"]).stderr
    assert runner.invoke(main, ["xyzzy"]).stderr.endswith("error: No such command 'xyzzy'.\n")


def test_an_error_while_running_is_one_line_and_no_traceback(runner: CliRunner, wiring: Wiring) -> None:
    wiring.error = UnsupportedError("this kernel has no nftables")
    result = runner.invoke(main, ["proxy", "--nodeport-addresses=primary"])
    assert (result.exit_code, result.stderr) == (1, "error: this kernel has no nftables\n")


def test_the_configuration_is_written_and_can_be_used(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "out.yaml"
    result = runner.invoke(main, ["proxy", f"--write-config-to={path}", "--iptables-min-sync-period=2s"])
    assert result.exit_code == 0
    assert load_config(str(path)).config.sync.min_sync_period == 2.0
    again = tmp_path / "again.yaml"
    result = runner.invoke(main, ["proxy", f"--config={path}", f"--write-config-to={again}"])
    assert result.exit_code == 0
    assert again.read_text() == path.read_text()


def test_a_configuration_that_cannot_be_written_is_one_line(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(main, ["proxy", f"--write-config-to={tmp_path}", "--nodeport-addresses=primary"])
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path}: cannot write the configuration: Is a directory\n"


def test_a_command_that_lives_elsewhere_is_found(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("vipwire_lab.cli")
    module.__dict__["lab"] = click.Command("lab", callback=lambda: click.echo("lab runs"))
    monkeypatch.setitem(sys.modules, "vipwire_lab.cli", module)
    result = runner.invoke(main, ["lab"])
    assert (result.exit_code, result.output) == (0, "lab runs\n")


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


@pytest.mark.parametrize("group", [(), ("lab",), ("token",), ("store",), ("install",)])
def test_without_a_command_a_group_prints_its_help_as_it_is(runner: CliRunner, group: tuple[str, ...]) -> None:
    done = runner.invoke(main, list(group))
    assert done.output.startswith("Usage: ")
    assert "error:" not in done.output
    assert "Commands:" in done.output or "Serve Services:" in done.output


def test_the_choices_of_a_missing_argument_are_in_one_line(runner: CliRunner) -> None:
    done = runner.invoke(main, ["completion"])
    assert done.exit_code == 2
    assert "Choose from: bash, zsh, fish" in done.output
    assert "\t" not in done.output


def test_a_proxy_without_a_source_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[Config] = []
    monkeypatch.setattr("vipwire.proxy_daemon.run.prepare_machine", changed.append)
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="no API server"):
        run_proxy(Config(), lambda: Loaded(Config(), ()))
    assert not changed
