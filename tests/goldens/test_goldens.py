"""Names that users and machines rely on stay: a change of one shows here, and in its commit, line by line."""

import pytest
from tests.goldens.surface import LISTS, collect, golden

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("name", LISTS)
def test_names_that_others_rely_on_stay(name: str) -> None:
    """To accept a change: `python -m tests.goldens NAME`, as root."""
    assert collect(name).splitlines() == golden(name).read_text(encoding="utf-8").splitlines()
