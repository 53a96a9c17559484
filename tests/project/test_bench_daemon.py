"""What is to run beside vipwire is looked for before anything is measured."""

from pathlib import Path

import pytest
from bench import daemon
from bench.blackbox.daemon import Daemon
from bench.options import Options


def test_what_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    nothing = str(tmp_path)
    with pytest.raises(SystemExit, match=f"^--kube-proxy: {nothing} is no program$"):
        daemon.measure(Options(kube_proxy=nothing))
    with pytest.raises(SystemExit, match=f"^--before: {nothing} is no checkout"):
        daemon.measure(Options(before=nothing))


def test_a_proxy_that_ends_is_told_with_its_status_and_its_last_words() -> None:
    with Daemon(["sh", "-c", "echo no module ip_vs >&2; exit 3"], {}) as proxy:
        proxy.process.wait(60)
        with pytest.raises(SystemExit, match=r"has ended with status 3 after \d+\.\d s:\nno module ip_vs"):
            proxy.age()
