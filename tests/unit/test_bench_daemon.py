"""What is to run beside vipwire is looked for before anything is measured."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench import daemon
from bench.blackbox.daemon import Daemon
from bench.options import Options


@pytest.mark.parametrize("flag", ["kube_proxy", "before"])
def test_what_is_not_there_is_told_in_a_line(flag: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"^--{flag.replace('_', '-')}: {tmp_path} is no "):
        daemon.measure(replace(Options(), **{flag: str(tmp_path)}))


def test_a_proxy_that_ends_is_told_with_its_status_and_its_last_words() -> None:
    with Daemon(["sh", "-c", "echo no module ip_vs >&2; exit 3"], {}) as proxy:
        proxy.process.wait(60)
        with pytest.raises(SystemExit, match=r"has ended with status 3 after \d+\.\d s:\nno module ip_vs"):
            proxy.age()
