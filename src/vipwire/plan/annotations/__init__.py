"""Reads the annotations of a Service: each word is read here, once, and nowhere else.

`words` lists them, `values` reads what stands behind them, and `wishes` makes the typed result that everybody sees.
`lacks` is how a mode says that it cannot do something.
"""

from vipwire.plan.annotations.lacks import Lack, in_vain
from vipwire.plan.annotations.values import Balancing, Forwarding, SchedulerFlag, Scope
from vipwire.plan.annotations.wishes import NOTHING, Wishes, field_of, read_weights, wants_local, wishes
from vipwire.plan.annotations.words import PREFIX

__all__ = [
    "NOTHING",
    "PREFIX",
    "Balancing",
    "Forwarding",
    "Lack",
    "SchedulerFlag",
    "Scope",
    "Wishes",
    "field_of",
    "in_vain",
    "read_weights",
    "wants_local",
    "wishes",
]
