"""The documents' examples that need IPVS, run as a reader types them. In the guest."""

import pytest
from tests.examples.running import assert_as_shown
from tests.examples.stages import STAGES, Stage

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(280)]


@pytest.mark.parametrize("stage", [each for each in STAGES if each.guest], ids=lambda stage: stage.name)
def test_examples_do_what_the_documents_show(stage: Stage) -> None:
    assert_as_shown(stage)
