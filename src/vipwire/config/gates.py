"""Feature gates: the known ones, the locked ones, and the reading of `A=true,B=false`.

A generally available gate is locked: turning it off is an error, as in kube-proxy. `AllAlpha` and `AllBeta` set every
gate of that stage that is not named itself. An unknown gate causes a warning, because clusters give one list of gates
to several versions; one whose name is close to one of `SECURITY_GATES` is an error.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from vipwire.model.text import find_nearest

Gates = tuple[tuple[str, bool], ...]
"""The operator's feature gates: (name, value), sorted by name."""


class Stage(enum.Enum):
    """The maturity of a feature; the value is the `stage` label of `kubernetes_feature_enabled`."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = ""


class Gate(NamedTuple):
    """One known feature gate."""

    default: bool
    stage: Stage
    locked: bool = False


KNOWN_GATES: Final[Mapping[str, Gate]] = {
    "AllAlpha": Gate(default=False, stage=Stage.ALPHA),
    "AllBeta": Gate(default=False, stage=Stage.BETA),
    "AllowServiceExternalIPs": Gate(default=True, stage=Stage.GA),
    "ComponentFlagz": Gate(default=True, stage=Stage.BETA),
    "ComponentStatusz": Gate(default=True, stage=Stage.BETA),
    "ContextualLogging": Gate(default=True, stage=Stage.BETA),
    "LoggingAlphaOptions": Gate(default=False, stage=Stage.ALPHA),
    "LoggingBetaOptions": Gate(default=True, stage=Stage.BETA),
    "MultiCIDRServiceAllocator": Gate(default=True, stage=Stage.GA, locked=True),
    "NFTablesProxyMode": Gate(default=True, stage=Stage.GA, locked=True),
    "PreferSameTrafficDistribution": Gate(default=True, stage=Stage.GA, locked=True),
    "StrictIPCIDRValidation": Gate(default=True, stage=Stage.BETA),
}
SECURITY_GATES: Final = ("AllowServiceExternalIPs", "StrictIPCIDRValidation")
"""Gates that decide which objects vipwire trusts."""
_GROUPS: Final = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool:
    """Parse a boolean as Go's strconv.ParseBool does. Raise ValueError."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{text!r} is not true or false")


def parse_gates(text: str) -> Gates:
    """Parse `A=true,B=false`; the last value of a name counts. Raise ValueError that names the gate."""
    gates: dict[str, bool] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals:
            raise ValueError(f"missing bool value for {name}: write {name}=true or {name}=false")
        try:
            gates[name] = parse_bool(value)
        except ValueError:
            raise ValueError(f"invalid value of {name}={value}: must be true or false") from None
    return tuple(sorted(gates.items()))


def find_gate_errors(gates: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """List the errors: unknown gates, and locked ones set to the other value."""
    errors = []
    for name, value in gates:
        gate = KNOWN_GATES.get(name)
        if gate is None and (meant := _find_security_gate_like(name)):
            errors.append(f"unrecognized feature gate: {name} (did you mean {meant}?)")
        elif gate is not None and gate.locked and value != gate.default:
            locked_to = str(gate.default).lower()
            errors.append(f"cannot set feature gate {name} to {str(value).lower()}: it is locked to {locked_to}")
    return tuple(errors)


def _find_security_gate_like(name: str) -> str:
    lowered = {gate.lower(): gate for gate in SECURITY_GATES}
    return lowered.get(find_nearest(name.lower(), lowered, 0.8), "")


def find_gate_notes(gates: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """List the gates in the configuration that have no effect."""
    foreign = [name for name, _ in gates if name not in KNOWN_GATES]
    return (f"feature gates without effect in vipwire: {', '.join(foreign)}",) if foreign else ()


def list_enabled_gates(gates: Iterable[tuple[str, bool]]) -> Mapping[str, bool]:
    chosen = dict(gates)
    groups = {stage: chosen[name] for name, stage in _GROUPS.items() if name in chosen}
    return {
        name: chosen.get(name, gate.default if name in _GROUPS else groups.get(gate.stage, gate.default))
        for name, gate in KNOWN_GATES.items()
    }
