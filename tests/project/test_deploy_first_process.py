"""vipwire as the first process of a container, to which the kernel gives no signal that it has not asked for."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.kernel
CODE = """
import os, signal
from vipwire.cli.main import main

@main.command("slow")
def slow():
    assert os.getpid() == 1
    signal.raise_signal(signal.SIGTERM)
    print("nothing has happened")

main(["slow"])
"""


def test_it_can_be_ended_before_a_command_has_a_way_of_its_own_to_end() -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")
