"""Flags in Go's style, and how they become a configuration."""

from pathlib import Path

import pytest

from vipwire.config.configuration import ROWS, Config
from vipwire.config.flags import FLAGS, build_config, list_flag_values, parse_flags
from vipwire.config.kinds import ModuleVerbosity, ValueKind, format_duration
from vipwire.config.schema import Group
from vipwire.errors import ConfigError

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def _built(*arguments: str) -> Config:
    return build_config(parse_flags(arguments)).config


def _warnings(*arguments: str) -> tuple[str, ...]:
    return build_config(parse_flags(("--nodeport-addresses=primary", *arguments))).warnings


def test_every_current_flag_is_explained_and_every_old_one_says_what_became_of_it() -> None:
    assert [name for name, flag in FLAGS.items() if flag.group is not Group.OLD and not flag.text] == []
    assert all(flag.warning for flag in FLAGS.values() if flag.group is Group.OLD)


def test_every_flag_sets_a_field_of_its_own_kind() -> None:
    kinds = {flag.name: {ROWS[path].kind for path in flag.paths} or {flag.kind} for flag in FLAGS.values()}
    assert kinds == {flag.name: {flag.kind} for flag in FLAGS.values()}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["--proxy-mode", "ipvs"], {"proxy-mode": "ipvs"}),
        (["--proxy-mode=ipvs"], {"proxy-mode": "ipvs"}),
        (["--proxy_mode=ipvs"], {"proxy-mode": "ipvs"}),
        (["--proxy-mode="], {"proxy-mode": ""}),
        (["--proxy-mode=a=b"], {"proxy-mode": "a=b"}),
        (["--master", "--cleanup"], {"master": "--cleanup"}),
        (["--cleanup"], {"cleanup": True}),
        (["--cleanup=false"], {"cleanup": False}),
        (["--cleanup=T"], {"cleanup": True}),
        (["-v", "2"], {"v": 2}),
        (["-v=2"], {"v": 2}),
        (["-v2"], {"v": 2}),
        (["--v=2"], {"v": 2}),
        (["--iptables-masquerade-bit=0x0f"], {"iptables-masquerade-bit": 15}),
        (["--kube-api-qps=0.5"], {"kube-api-qps": 0.5}),
        (["--ipvs-sync-period", "1m30s"], {"ipvs-sync-period": 90.0}),
        (["--proxy-mode=ipvs", "--proxy-mode=iptables"], {"proxy-mode": "iptables"}),
        (["--nodeport-addresses=10.0.0.0/8, ::/0", "--nodeport-addresses=11.0.0.0/8"],
         {"nodeport-addresses": ("10.0.0.0/8", "::/0", "11.0.0.0/8")}),
        (["--manifests=a,b", "--manifests", "c"], {"manifests": ("a,b", "c")}),
        (["--feature-gates=AllAlpha=true,AllBeta=false", "--feature-gates=AllBeta=true"],
         {"feature-gates": (("AllAlpha", True), ("AllBeta", True))}),
        (["--vmodule=a*=1,b=2"], {"vmodule": (ModuleVerbosity("a*", 1), ModuleVerbosity("b", 2))}),
        (["--version=raw"], {"version": True}),
        (["-h"], {"help": True}),
        (["--logtostderr=true", "--log_dir=logs"], {"logtostderr": True, "log-dir": "logs"}),
    ],
)  # fmt: skip
def test_arguments_are_read_as_pflag_reads_them(arguments: list[str], given: dict[str, object]) -> None:
    assert parse_flags(arguments) == given


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--proxy-mod=x"], "unknown flag: --proxy-mod (did you mean --proxy-mode?)"),
        (["--zzzzz"], "unknown flag: --zzzzz"),
        (["-x"], "unknown flag: -x (flags with long names begin with two dashes)"),
        (["--master"], "flag needs an argument: --master"),
        (["-v"], "flag needs an argument: -v"),
        (["--cleanup", "false"], "vipwire proxy takes no arguments besides flags, got 'false'"),
        (["--"], "vipwire proxy takes no arguments besides flags, got '--'"),
        (["--cleanup=yes"], "invalid argument 'yes' for --cleanup: 'yes' is not true or false"),
        (["-v=x"], "invalid argument 'x' for --v: must be a whole number"),
        (["-v=9999999999"], "invalid argument '9999999999' for --v: exceeds 32 bits"),
        (["--feature-gates=A"], ("invalid argument 'A' for --feature-gates: missing bool value for A: "
         "write A=true or A=false")),
        (["--feature-gates=A=maybe"], ("invalid argument 'A=maybe' for --feature-gates: invalid value of A=maybe: "
         "must be true or false")),
        (["--vmodule=a"], "invalid argument 'a' for --vmodule: must be file=N,other=M with whole numbers"),
        (["--udp-timeout=5"], ("invalid argument '5' for --udp-timeout: '5' is not a duration such as 30s, 1m30s, "
         "500ms, 24h0m0s or 0")),
        (["--kube-api-qps=many"], ("invalid argument 'many' for --kube-api-qps: "
         "could not convert string to float: 'many'")),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_that_names_the_flag(arguments: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_flags(arguments)
    assert str(raised.value) == error


def test_flags_stand_on_the_defaults() -> None:
    config = _built("--proxy-mode=ipvs", "--ipvs-scheduler=mh", "--cluster-cidr=10.0.0.0/8", "--master=http://a:1")
    assert (config.proxy_mode, config.ipvs.scheduler, config.cluster_cidr) == ("ipvs", "mh", "10.0.0.0/8")
    assert (config.master, config.oom_score_adj) == ("http://a:1", -999)
    assert config.explicit == {"mode", "ipvs.scheduler", "clusterCIDR", "master"}


@pytest.mark.parametrize(
    ("arguments", "healthz", "metrics"),
    [
        ((), "0.0.0.0:10256", "127.0.0.1:10249"),
        (("--bind-address=fd00::1",), "[::]:10256", "[::1]:10249"),
        (("--healthz-port=0", "--metrics-port=0"), "", ""),
        (("--healthz-port=81", "--metrics-port=82"), "0.0.0.0:81", "127.0.0.1:82"),
        (("--healthz-port=81", "--bind-address=::"), "[::]:81", "[::1]:10249"),
        (("--healthz-port=81", "--healthz-bind-address=10.0.0.1:80"), "10.0.0.1:80", "127.0.0.1:10249"),
        (("--healthz-bind-address=", "--metrics-bind-address=0.0.0.0"), "", "0.0.0.0:10249"),
        (("--healthz-bind-address=::1", "--metrics-bind-address=[::]:1"), "[::1]:10256", "[::]:1"),
    ],
)
def test_the_servers_addresses(arguments: tuple[str, ...], healthz: str, metrics: str) -> None:
    config = _built(*arguments)
    assert (config.healthz_bind_address, config.metrics_bind_address) == (healthz, metrics)


def test_the_host_name_is_trimmed_and_lower_cased_and_must_not_be_blank() -> None:
    assert _built("--hostname-override= Node-1 ").hostname_override == "node-1"
    with pytest.raises(ConfigError, match="hostnameOverride"):
        _built("--hostname-override=  ")


def test_with_a_file_the_file_decides_and_ignored_flags_are_named(tmp_path: Path) -> None:
    path = tmp_path / "kp.yaml"
    path.write_text(
        HEADER
        + "mode: iptables\nhostnameOverride: a\nlogging: {verbosity: 1, vmodule: [{filePattern: z, verbosity: 1}]}\n"
    )
    loaded = build_config(
        parse_flags(
            [
                f"--config={path}",
                "--proxy-mode=ipvs",
                "--oom-score-adj=1",
                "-v=5",
                "--vmodule=y=2",
                "--master=m",
                "--hostname-override=B",
                "--manifests=d",
                "--init-only",
                "--cleanup",
                "--proxy-mode-fallback",
            ]
        )
    )
    config = loaded.config
    assert (config.mode, config.oom_score_adj, config.hostname_override, config.master) == (
        "iptables",
        -999,
        "b",
        "m",
    )
    assert (config.manifests, config.init_only, config.cleanup, config.proxy_mode_fallback) == (
        ("d",),
        True,
        True,
        True,
    )
    assert config.logging.verbosity == 5
    assert config.logging.vmodule == (ModuleVerbosity("y", 2), ModuleVerbosity("z", 1))
    assert loaded.warnings == (
        "ignored, because --config is given: --proxy-mode, --oom-score-adj",
        "nodePortAddresses is unset: NodePorts answer on all local addresses; consider 'primary'",
    )


def test_an_invalid_file_is_told_by_its_path_and_invalid_flags_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "kp.yaml"
    path.write_text(HEADER + "oomScoreAdj: 5000\n")
    with pytest.raises(ConfigError) as raised:
        _built(f"--config={path}")
    wrong = "KubeProxyConfiguration.oomScoreAdj: Invalid value: 5000: must be within the range [-1000, 1000]"
    assert str(raised.value) == f"{path}: {wrong}"
    with pytest.raises(ConfigError) as raised:
        _built("--oom-score-adj=5000", "--proxy-mode=x")
    lines = str(raised.value).splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["(--proxy-mode)", "(--oom-score-adj)"]
    assert lines[1].startswith(wrong)


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (["--udp-timeout=1s"], "--udp-timeout only has a meaning in userspace mode"),
        (["--proxy-port-range=1-2"], "--proxy-port-range only has a meaning in userspace mode"),
        (["--enable-dsr"], "--enable-dsr has no effect: only has a meaning on Windows"),
        (["--conntrack-max=5"], "--conntrack-max has no effect: use --conntrack-max-per-core and --conntrack-min"),
        (["--cleanup-iptables"], "--cleanup-iptables is the old name of --cleanup"),
        (["--healthz-port=1"], "--healthz-port is deprecated: use --healthz-bind-address"),
    ],
)
def test_a_flag_without_a_meaning_is_accepted_and_warned_of(arguments: list[str], warning: str) -> None:
    assert _warnings(*arguments) == (warning,)


def test_userspace_flags_are_not_warned_of_in_userspace_mode() -> None:
    assert _warnings("--proxy-mode=userspace", "--udp-timeout=1s", "--proxy-port-range=1-2") == ()
    config = _built("--proxy-mode=userspace", "--udp-timeout=1s", "--proxy-port-range=1-2")
    assert (config.udp_idle_timeout, config.port_range) == (1.0, "1-2")


def test_the_old_name_of_cleanup_cleans_up() -> None:
    assert _built("--cleanup-iptables").cleanup


def test_flagz_shows_the_value_in_force_of_every_flag() -> None:
    values = list_flag_values(
        _built("--ipvs-exclude-cidrs=10.0.0.0/8,11.0.0.0/8", "-v=3", "--feature-gates=AllAlpha=true")
    )
    assert (values["ipvs-exclude-cidrs"], values["v"]) == ("10.0.0.0/8,11.0.0.0/8", "3")
    assert (values["feature-gates"], values["cleanup"]) == ("AllAlpha=true", "false")
    assert values["conntrack-tcp-timeout-established"] == format_duration(86400.0)
    assert {flag.kind for flag in FLAGS.values()} <= set(ValueKind)
