"""Feature gates of every Kubernetes that people come from: taken, and said."""

import pytest

from vipwire.config.flags.parse import build_config, parse_flags
from vipwire.config.foreign_gates import FOREIGN_GATES
from vipwire.config.gates import KNOWN_GATES, enabled_gates, gate_errors, gate_notes


@pytest.mark.parametrize(
    "gate",
    [
        "EndpointSliceProxying",  # 1.18 to 1.24, kube-proxy's own
        "SCTPSupport",
        "SupportIPVSProxyMode",
        "ServiceTopology",
        "IPv6DualStack",
        "TopologyAwareHints",
        "ProxyTerminatingEndpoints",
        "MinimizeIPTablesRestore",
        "KubeProxyDrainingTerminatingNodes",
        "LoadBalancerIPMode",
        "GracefulNodeShutdown",  # others', in lists that are given to every component
        "DynamicResourceAllocation",
    ],
)
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_gate_of_another_version_or_component_is_taken_with_a_warning(gate: str, value: str) -> None:
    given = parse_flags([f"--feature-gates={gate}={value}", "--nodeport-addresses=primary"])
    assert build_config(given).warnings == (f"feature gates of Kubernetes that have no effect here: {gate}",)


def test_no_gate_is_both_ours_and_foreign() -> None:
    assert not FOREIGN_GATES & KNOWN_GATES.keys()
    assert all(gate.isidentifier() for gate in FOREIGN_GATES)
    assert not set(enabled_gates([("SCTPSupport", True)])) & FOREIGN_GATES


def test_what_nobody_knows_is_an_error_that_says_what_is_near() -> None:
    (error,) = gate_errors([("EndpointSlicesProxying", True)])
    assert error.startswith(
        "unrecognized feature gate: EndpointSlicesProxying (did you mean EndpointSliceProxying?); "
    )
    assert gate_notes([("NFTablesProxyMode", True)]) == ()
