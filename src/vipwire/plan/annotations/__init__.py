"""Reads a Service's annotations, for all other modules.

`words` lists them, `values` parses their values, `read_wishes` returns the typed result. A mode declares unsupported
annotations as `lacks`.
"""

from vipwire.plan.annotations.values import Balancing, ForwardingMethod, SchedulerFlag, Scope
from vipwire.plan.annotations.wishes import (
    NOTHING,
    Lack,
    Wishes,
    field_of,
    find_ineffective,
    read_weights,
    read_wishes,
    wants_local,
)
from vipwire.plan.annotations.words import PREFIX

__all__ = [
    "NOTHING",
    "PREFIX",
    "Balancing",
    "ForwardingMethod",
    "Lack",
    "SchedulerFlag",
    "Scope",
    "Wishes",
    "field_of",
    "find_ineffective",
    "read_weights",
    "read_wishes",
    "wants_local",
]
