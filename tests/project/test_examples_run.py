"""The documents' examples, run as a reader types them, on machines of namespaces; what they print is compared.

Those that need IPVS are run in a guest: tests/proxy/kernel/ipvs/examples.py.
"""

import pytest
from tests.examples.running import assert_as_shown
from tests.examples.stages import STAGES, Stage

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


@pytest.mark.parametrize("stage", [each for each in STAGES if not each.guest], ids=lambda stage: stage.name)
def test_examples_do_what_the_documents_show(stage: Stage) -> None:
    assert_as_shown(stage)
