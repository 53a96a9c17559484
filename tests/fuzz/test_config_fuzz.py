"""Whatever an operator writes: a configuration or an error that says something, never a crash."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from vipwire.config.file import read_config
from vipwire.config.flags import FLAGS, build_config, parse_flags
from vipwire.config.validation import validate
from vipwire.errors import ConfigError

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
_LINES = st.lists(
    st.tuples(
        st.sampled_from(["mode", "iptables", "ipvs", "logging", "featureGates", "clusterCIDR", "nodePortAddresses"]),
        st.text(st.sampled_from(list("{}[]:,&*!|>'\"#%@ -0123456789abcsm\n\t\\<")), max_size=30),
    ).map(lambda pair: f"{pair[0]}: {pair[1]}"),
    max_size=5,
).map("\n".join)
_ARGUMENTS = st.lists(
    st.tuples(st.sampled_from(sorted(set(FLAGS) - {"config"})), st.text(max_size=12)).map(
        lambda p: f"--{p[0]}={p[1]}"
    )
    | st.text(max_size=8),
    max_size=5,
)


@given(st.text() | _LINES.map(lambda lines: HEADER + lines))
def test_any_text_is_a_configuration_or_an_error_with_a_text(text: str) -> None:
    found = ""
    try:
        config = read_config(text, "kp.yaml").config
    except ConfigError as error:
        found = str(error)
    if found:
        assert all(line.startswith("kp.yaml") for line in found.splitlines())
    else:
        assert all(str(error).startswith("KubeProxyConfiguration.") for error in validate(config))


@given(_ARGUMENTS)
def test_any_command_line_is_a_configuration_or_an_error_with_a_text(arguments: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        assert build_config(parse_flags(arguments)).config.sync.sync_period > 0
