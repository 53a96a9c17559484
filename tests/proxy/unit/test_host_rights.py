"""Which capabilities a process has, and what is said where one is missing."""

from pathlib import Path

import pytest

from vipwire.errors import UnsupportedError
from vipwire.linux.host.rights import capabilities, require_net_admin


def proc(folder: Path, effective: str) -> Path:
    (folder / "self").mkdir()
    (folder / "self" / "status").write_text(f"Name:\tvipwire\nCapPrm:\tffffffff\n{effective}Seccomp:\t0\n")
    return folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CapEff:\t0000000000000000\n", set()),
        ("CapEff:\t0000000000001000\n", {"CAP_NET_ADMIN"}),
        ("CapEff:\t0000000001003000\n", {"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_RESOURCE"}),
        ("", set()),
    ],
)
def test_capabilities_are_those_in_force(tmp_path: Path, line: str, expected: set[str]) -> None:
    assert capabilities(proc(tmp_path, line)) == expected


def test_where_nothing_can_be_read_there_are_none(tmp_path: Path) -> None:
    assert capabilities(tmp_path) == frozenset()


def test_the_missing_capability_is_named_and_what_works_without(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        require_net_admin("vipwire cleanup", proc(tmp_path, "CapEff:\t0000000000002000\n"))
    said = str(caught.value)
    assert said.startswith("vipwire cleanup needs the capability CAP_NET_ADMIN: run it as root, or add NET_ADMIN")
    assert "`plan`" in said
