"""A section is a value that costs no compiling, and keeps a row of each field that a file or a flag sets."""

import dataclasses

import pytest

from vipwire.config.kinds import ValueKind
from vipwire.config.schema import Section, replace_at, rows_of, setting


class Inner(Section, frozen=True):
    """A section in another."""

    limit: int = setting("*-limit", "Of the *.", 3, file_name="theLimit", mode="ebpf")
    other_limit: int = setting(default=4)


class Narrow(Inner, frozen=True):
    """A section with another default."""

    other_limit: int = 2


class Outer(Section, frozen=True):
    """A section with a field that no file has."""

    inner: Inner = setting(default=Narrow())
    only_a_flag: str = ""


def test_a_section_is_a_frozen_value_with_its_defaults() -> None:
    outer = Outer()
    assert (outer, hash(outer)) == (Outer(Narrow(3, 2), ""), hash(Outer()))
    assert dataclasses.replace(outer, inner=Inner(4)).inner.limit == 4
    assert not hasattr(outer, "__dict__")
    with pytest.raises(AttributeError):
        outer.only_a_flag = "x"  # type: ignore[misc]


def test_its_rows_have_the_paths_the_defaults_and_the_kinds_of_its_fields() -> None:
    assert [field.name for field in dataclasses.fields(Outer)] == ["inner", "only_a_flag"]
    limit, other = rows_of(Outer)
    assert (limit.path, limit.attribute, limit.default, limit.mode) == ("inner.theLimit", "inner.limit", 3, "ebpf")
    assert (limit.name, limit.text, limit.kind) == ("inner-limit", "Of the inner.", ValueKind.INT)
    assert (other.path, other.default, other.value(Outer())) == ("inner.otherLimit", 2, 2)
    assert replace_at(Outer(), limit.attribute, 5).inner.limit == 5
