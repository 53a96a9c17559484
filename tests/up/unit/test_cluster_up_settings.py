"""The flags of `vipwire up` that are for the proxy in it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from vipwire.config.flags import list_explicit_flags
from vipwire.errors import ConfigError
from vipwire_up.cli import up
from vipwire_up.up_settings import read_setting


def flags(*words: str) -> dict[str, object]:
    """Read a command line of `vipwire up` as click does."""
    context = up.make_context("up", list(words))
    return context.params


def test_without_any_the_proxy_is_in_nftables_mode_on_the_named_node() -> None:
    config = read_setting(flags("--node-name", "here")).proxy
    assert config is not None
    assert (config.proxy_mode, config.hostname_override) == ("nftables", "here")


def test_flags_of_the_proxy_stand_behind_two_dashes() -> None:
    words = ("--proxy-mode", "iptables", "--", "--masquerade-all", "--cluster-cidr=10.1.0.0/16")
    config = read_setting(flags(*words)).proxy
    assert config is not None
    assert (config.proxy_mode, config.nftables.masquerade_all) == ("iptables", True)
    assert str(config.cluster_cidr) == "10.1.0.0/16"


def test_the_proxy_serves_the_page_where_up_is_told_to() -> None:
    config = read_setting(flags("--view-bind-address", "127.0.0.1")).proxy
    assert config is not None
    assert config.view_bind_address == "127.0.0.1:10247"


def test_a_file_of_the_proxy_says_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: userspace\n")
    config = read_setting(flags("--node-name", "here", "--", "--config", str(file))).proxy
    assert config is not None
    assert (config.proxy_mode, config.hostname_override) == ("userspace", "here")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "--manifests=/tmp"), "--manifests is not allowed here"),
        (("--", "--write-config-to=/tmp/x"), "--write-config-to behind -- is for `vipwire proxy` alone"),
        (("--", "--takeover"), "--takeover behind -- is for `vipwire proxy` alone: give it before --"),
        (("--node-ip", "203.0.113.77"), "--node-ip 203.0.113.77: this machine has "),
        (("--", "--hostname-override=x"), "--hostname-override is not allowed here"),
        (("--no-proxy", "--", "--masquerade-all"), "--no-proxy is set"),
        (("--proxy-mode=ipvs", "--", "--config=/etc/proxy.yaml"), "with --config set it in that file (mode: ipvs)"),
        (("--", "--masqerade-all"), "--masqerade-all"),
        (("--", "stray"), "takes no arguments besides flags"),
    ],
)
def test_what_the_proxy_cannot_be_told_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_setting(flags(*words))
    assert said in str(error.value)


def test_a_server_that_is_none_is_refused_with_and_without_dns() -> None:
    for words in (("--dns-upstream", "foo"), ("--no-dns", "--dns-upstream", "foo")):
        with pytest.raises(ConfigError, match="--dns-upstream: 'foo' is not an IP address"):
            read_setting(flags(*words))


def test_the_proxy_leads_those_who_look_to_this_api_server() -> None:
    setting = read_setting(flags("--data-dir", "/srv/cluster"))
    assert setting.proxy is not None
    assert "--kubeconfig=/srv/cluster/admin.kubeconfig" in list_explicit_flags(setting.proxy)


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(up, ["--data-dir", str(tmp_path / "data"), "--", "--manifests=/tmp"])
    assert done.exit_code == 2
    assert done.output.startswith("error: --manifests is not allowed here")
    assert not (tmp_path / "data").exists()
