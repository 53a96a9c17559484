"""A section is a value that costs no compiling, and says of its fields what a file calls them."""

import dataclasses

import pytest

from vipwire.config.schema import Section, ValueKind, file_fields, file_paths, section, setting, setting_of


class Inner(Section, frozen=True):
    """A section in another."""

    limit: int = setting("theLimit", ValueKind.INT, 3, mode="ebpf")


class Outer(Section, frozen=True):
    """A section with a field that no file has."""

    inner: Inner = section("inner", Inner)
    only_a_flag: str = ""


def test_a_section_is_a_frozen_value_with_its_defaults() -> None:
    outer = Outer()
    assert (outer, hash(outer)) == (Outer(Inner(3), ""), hash(Outer()))
    assert dataclasses.replace(outer, inner=Inner(4)).inner.limit == 4
    assert not hasattr(outer, "__dict__")
    with pytest.raises(AttributeError):
        outer.only_a_flag = "x"  # type: ignore[misc]


def test_its_fields_keep_what_was_said_of_them() -> None:
    assert [field.name for field in dataclasses.fields(Outer)] == ["inner", "only_a_flag"]
    assert [field.name for field in file_fields(Outer)] == ["inner"]
    ((path, field),) = file_paths(Outer)
    assert (path, field.default, setting_of(field).mode) == ("inner.theLimit", 3, "ebpf")
