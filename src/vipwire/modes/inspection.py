"""The part of a mode for the commands that look. A running proxy does not load it, nor the module that it names."""

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from vipwire.config.configuration import Config
from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes.spec import ModeSpec
from vipwire.reconcile.explainer import Explainer


class Remark(NamedTuple):
    """A mode's remark about this machine: the subject, and the remedy for a fault."""

    what: str
    said: str
    remedy: str = ""
    bad: bool = False


class Inspection(Value, frozen=True):
    """How the commands that look read a mode."""

    explainer: Callable[[Family, Any], Explainer[Any, Any, Any] | None]
    """Builds the explainer of a Mode's objects."""
    remarks: Callable[[Config], Iterable[Remark]] = lambda _: ()
    """Lists facts about this machine for an operator, beside whether the mode can be built."""
    standing: Callable[[Config], Iterable[Remark]] = lambda _: ()
    """Describes the mode's state beside rules for `vipwire status`; reads only."""


@cache
def inspection_of(spec: ModeSpec) -> Inspection:
    found = import_module(spec.inspection).INSPECTION
    if not isinstance(found, Inspection):
        raise TypeError(f"INSPECTION of {spec.inspection} is not an Inspection")
    return found
