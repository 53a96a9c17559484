"""Health pages: what answers, which parts run, and who is told why not."""

import pytest

from vipwire.kube.errors import ApiError
from vipwire_up.api.answers.pages import read_health

WELL = {"DNS": "", "garbage collection": ""}
ILL = {"DNS": "port 53 is taken", "garbage collection": ""}


def ask(
    path: str,
    troubles: dict[str, str],
    *,
    verbose: bool = False,
    exclude: tuple[str, ...] = (),
    trusted: bool = True,
    note: str = "",
) -> tuple[int, str]:
    found = read_health(path, troubles, verbose=verbose, left_out=exclude, trusted=trusted, notes={"DNS": note})
    assert found is not None
    return found


def test_what_is_well_is_ok() -> None:
    assert ask("/readyz", WELL) == (200, "ok")
    lines = "[+]ping ok\n[+]part-dns ok\n[+]part-garbage-collection ok\nreadyz check passed\n"
    assert ask("/readyz", WELL, verbose=True) == (200, lines)
    assert ask("/readyz/part-dns", WELL) == (200, "ok")


def test_a_part_that_does_not_run_makes_it_not_ready_and_no_less_alive() -> None:
    code, text = ask("/readyz", ILL)
    assert code == 500
    assert "[-]part-dns failed: port 53 is taken\n[+]part-garbage-collection ok\nreadyz check failed" in text
    assert ask("/livez", ILL) == ask("/healthz/", ILL) == (200, "ok")
    assert ask("/readyz/part-dns", ILL)[0] == 500
    assert ask("/readyz", ILL, exclude=("part-dns",)) == (200, "ok")


def test_why_is_not_told_to_anybody() -> None:
    assert "[-]part-dns failed: reason withheld" in ask("/readyz", ILL, trusted=False)[1]
    assert "53" not in ask("/readyz", ILL, trusted=False)[1]


def test_what_is_wrong_within_a_part_that_works_is_told_to_whom_it_concerns() -> None:
    note = "one upstream server is passed over"
    assert ask("/readyz", WELL, note=note) == (200, "ok")
    assert f"[+]part-dns ok, but {note}\n" in ask("/readyz", WELL, note=note, verbose=True)[1]
    assert note not in ask("/readyz", WELL, note=note, verbose=True, trusted=False)[1]
    assert note not in ask("/readyz", ILL, note=note)[1]


def test_other_pages_and_unknown_checks() -> None:
    assert read_health("/version", WELL, verbose=False, left_out=(), trusted=True, notes={}) is None
    for path in ("/readyz/nope", "/healthz/part-dns"):
        with pytest.raises(ApiError) as refused:
            ask(path, WELL)
        assert refused.value.code == 404
