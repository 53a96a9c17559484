"""Reads the annotations of a Service: each word is read here, once, and nowhere else.

`words` lists them, `values` parses their values, and `read_wishes` returns the typed result that everybody uses.
`lacks` is how a mode says that it cannot do something.
"""

from vipwire.plan.annotations.values import Balancing, ForwardingMethod, SchedulerFlag, Scope
from vipwire.plan.annotations.wishes import (
    NOTHING,
    Lack,
    Wishes,
    field_of,
    in_vain,
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
    "in_vain",
    "read_weights",
    "read_wishes",
    "wants_local",
]
