"""Feature gates: an unknown one causes a warning, a misspelt one that decides about trust is an error."""

import pytest

from vipwire.config.flags import build_config, parse_flags
from vipwire.config.gates import SECURITY_GATES, gate_errors, gate_notes
from vipwire.errors import ConfigError


@pytest.mark.parametrize("gate", ["EndpointSliceProxying", "DynamicResourceAllocation", "GateOfKubernetes140"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_gate_of_another_version_or_component_causes_a_warning(gate: str, value: str) -> None:
    given = parse_flags([f"--feature-gates={gate}={value}", "--nodeport-addresses=primary"])
    (warning,) = build_config(given).warnings
    assert warning.endswith(f": {gate}")
    assert gate_notes([("NFTablesProxyMode", True)]) == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("AllowServiceExternalIP", "AllowServiceExternalIPs"),
        ("allowserviceexternalips", "AllowServiceExternalIPs"),
        ("AllowServicesExternalIPs", "AllowServiceExternalIPs"),
        ("StrictIPCIDRValidations", "StrictIPCIDRValidation"),
        ("StrictCIDRValidation", "StrictIPCIDRValidation"),
    ],
)
def test_a_misspelt_gate_that_decides_about_trust_is_refused(written: str, meant: str) -> None:
    assert meant in SECURITY_GATES
    (error,) = gate_errors([(written, False)])
    assert meant in error
    with pytest.raises(ConfigError):
        build_config(parse_flags([f"--feature-gates={written}=false"]))
