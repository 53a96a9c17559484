"""The wall clock of a running proxy in ipvs mode jumps by hours and years. In the guest."""

from pathlib import Path

import pytest
from tests.attacks.test_proxy_clock_jumps import play

pytestmark = pytest.mark.kernel


async def test_a_proxy_in_ipvs_mode_serves_after_each_jump_of_the_clock(tmp_path: Path) -> None:
    await play("ipvs", tmp_path)
