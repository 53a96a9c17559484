"""The fuzz targets: every test of this folder with arguments by hypothesis."""

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import settings

SLOW: Final = frozenset(
    {
        "test_haproxy_takes_whatever_is_rendered",
        "test_haproxy_takes_whatever_a_gateway_renders",
        "test_any_objects_in_the_store_leave_all_others_served",
        "test_any_message_from_upstream_is_an_answer_that_dnspython_reads_or_nothing",
    }
)
"""Targets that start programs or servers for every input."""


@dataclass(frozen=True, slots=True)
class Target:
    """A test as a function of bytes. Skips bytes that make no arguments."""

    name: str
    call: Callable[[bytes], Any]


def modules() -> list[str]:
    return sorted(f"tests.fuzz.{path.stem}" for path in Path(__file__).parent.glob("test_*.py"))


def targets(of: str = "") -> list[Target]:
    """Import the modules and return their targets; of one module if named."""
    settings.register_profile("fuzz", deadline=None, database=None)
    settings.load_profile("fuzz")
    found = []
    for name in [of] if of else modules():
        for key, value in vars(importlib.import_module(name)).items():
            if key.startswith("test_") and hasattr(value, "hypothesis"):
                with contextlib.suppress(TypeError):  # a test with a fixture, which only pytest can run
                    found.append(Target(f"{name.rpartition('.')[2]}::{key}", value.hypothesis.fuzz_one_input))
    return found
