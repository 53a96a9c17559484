"""A Value is what a frozen dataclass with slots is, for whoever uses it."""

import dataclasses

import pytest

from vipwire.model.value import Value


class Point(Value, frozen=True):
    """Two numbers."""

    x: int
    y: int = 0


def test_a_value_behaves_as_a_frozen_dataclass() -> None:
    point = Point(1)
    assert (point, hash(point), repr(point)) == (Point(1, 0), hash(Point(1, 0)), "Point(x=1, y=0)")
    assert dataclasses.replace(point, y=2) == Point(1, 2)
    assert [field.name for field in dataclasses.fields(Point)] == ["x", "y"]
    assert dataclasses.asdict(Point(3, 4)) == {"x": 3, "y": 4}
    assert not hasattr(point, "__dict__")
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]
