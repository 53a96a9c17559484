"""Runs the tests of ipvs mode under a kernel that has IPVS: a guest is booted once for all of its suites."""

import io
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from vipwire.backends.ipvs.kernel import IpvsBackend
from vipwire.errors import UnsupportedError
from vipwire.lab import kernel
from vipwire.lab.errors import LabError
from vipwire.model.net import Family

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
SUITES = ("ipvs_packets", "ipvs_features", "ipvs_explain")
_PATIENCE = 600.0
"""Seconds until a guest counts as dead. It takes a minute and a half on two cores that do nothing else."""


class Guest:
    """What became of the tests in the guest: by suite, the texts of those that failed, and how many passed."""

    def __init__(self, folder: Path) -> None:
        self.said = io.BytesIO()
        report = folder / "report.xml"
        files = [str(HERE / f"{suite}.py") for suite in SUITES]
        options = ["-p", "no:cacheprovider", "--tb=short", "-q", f"--junit-xml={report}", "--timeout=120"]
        command = [sys.executable, "-m", "pytest", *options, *files]
        guest = kernel.Guest(timeout=_PATIENCE, writable=(folder,))
        try:
            self.status = kernel.run(command, guest, stdout=self.said, stderr=self.said)
        except LabError as error:
            raise LabError(
                f"{error}\nthe tests in it said:\n{self.said.getvalue().decode(errors='replace')}"
            ) from error
        self.cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []  # noqa: S314

    def of(self, suite: str) -> tuple[int, list[str]]:
        """Count the tests of a suite that passed, and print the others."""
        mine = [case for case in self.cases if suite in case.get("classname", "")]
        bad = [case for case in mine if any(child.tag in ("failure", "error", "skipped") for child in case)]
        texts = [f"{case.get('name')}\n{''.join(child.text or '' for child in case)}" for case in bad]
        return len(mine) - len(bad), texts


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Guest:
    if why := kernel.obstacle():
        pytest.skip(f"ipvs mode is not tested: no kernel of its own can be booted: {why}")
    try:
        return Guest(tmp_path_factory.mktemp("guest"))
    except LabError as error:  # seen once in some fifty runs: the guest's kernel stands still; its log tells where
        print(f"the guest is booted once more: {error}", file=sys.__stderr__)
        return Guest(tmp_path_factory.mktemp("guest"))


@pytest.mark.parametrize("suite", SUITES)
def test_in_the_guest(guest: Guest, suite: str) -> None:
    passed, failed = guest.of(suite)
    said = guest.said.getvalue().decode(errors="replace")
    assert not failed, "\n\n".join(failed)
    assert passed > 0, f"nothing was tested; the guest said:\n{said[-6000:]}"
    assert guest.status == 0, said[-6000:]


def test_a_kernel_without_ipvs_is_told_what_to_load() -> None:
    if Path("/proc/net/ip_vs").exists():
        pytest.skip("this machine's own kernel has IPVS: that its absence is named cannot be seen here")
    with pytest.raises(UnsupportedError, match=r"load the module ip_vs .* linux-modules-extra"):
        IpvsBackend(Family.IPV4)
