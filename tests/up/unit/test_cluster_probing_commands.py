"""Commands of probes: nothing of them stays, they run as the user that is named, and only admins may say them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.up.unit.cluster_here import Here, in_cluster, pod
from tests.up.unit.controllers_here import PODS

from vipwire.errors import ConfigError
from vipwire_up.controllers.hooks import refuse_commands
from vipwire_up.readiness_probes.commands import RunAs, run_command
from vipwire_up.readiness_probes.probe import run_probe

pytestmark = pytest.mark.slow

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")


def running(word: str) -> list[str]:
    """List the processes that have a word in their command line, and have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if line.strip() == f"sleep {word}":
            found.append(line)
    return found


def wait_for_end_of(word: str) -> None:
    """Wait until the processes are gone: what is killed ends when the kernel gets to it."""
    until(lambda: not running(word), lambda: running(word))


def asked(command: list[str], who: RunAs | None = None, **probe: Any) -> str:
    return asyncio.run(run_probe({"exec": {"command": command}} | probe, {}, "web", who))


def test_a_command_that_is_too_slow_ends_with_all_that_it_has_started() -> None:
    assert asked(["sh", "-c", "sleep 43211 & sleep 43211"]) == "no answer within 1 s"
    wait_for_end_of("43211")


def test_what_a_command_leaves_in_the_background_ends_with_it() -> None:
    assert asked(["sh", "-c", "sleep 43212 & exit 0"], timeoutSeconds=60) == ""
    assert asked(["sh", "-c", "sleep 43212 & exit 3"], timeoutSeconds=60) == "command failed with exit code 3"
    wait_for_end_of("43212")


@pytest.mark.attack
@pytest.mark.parametrize("way", ["setsid sleep N & exit 0", "setsid sh -c 'setsid sleep N & exec sleep N' & exit 0",
    "(setsid sleep N &) & exit 0", "setsid sleep N & sleep 60"])  # fmt: skip
def test_a_session_of_its_own_is_no_way_out(way: str) -> None:
    late = "60" in way
    answer = asked(["sh", "-c", way.replace("N", "43214")], timeoutSeconds=3 if late else 60)
    assert answer == ("no answer within 3 s" if late else "")
    wait_for_end_of("43214")


@pytest.mark.attack
def test_what_a_command_has_started_ends_when_vipwire_is_killed() -> None:
    code = (
        "import asyncio; from vipwire_up.readiness_probes.commands import run_command; asyncio.run(run_command({!r}))"
    )
    command = ["sh", "-c", "setsid sleep 43215 & sleep 43215"]
    with subprocess.Popen([sys.executable, "-c", code.format(command)]) as killed:
        until(lambda: len(running("43215")) == 2)
        killed.kill()
    wait_for_end_of("43215")


def test_a_command_that_a_signal_ends_is_told_apart() -> None:
    assert asked(["sh", "-c", "kill -9 $$"], timeoutSeconds=60) == "command failed with exit code -9"


async def test_a_command_that_is_cancelled_ends() -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run_command(["sleep", "43213"]))
        while not running("43213"):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0)
        task.cancel()
    assert running("43213") == []


def test_what_cannot_be_started_is_a_bad_answer() -> None:
    assert asked([]) == "the command is empty"
    assert "No such file or directory: /no/such/command" in asked(["/no/such/command"], timeoutSeconds=60)
    assert "null byte" in asked(["a\0b"], timeoutSeconds=60)
    assert asked([5], timeoutSeconds=60) == "No such file or directory: 5"  # type: ignore[list-item]


@as_root
def test_a_command_runs_as_the_user_that_is_named() -> None:
    who = RunAs.user_named("nobody")
    checks = 'test "$(id -u)" = "$1" && test "$(id -G)" = "$2" && test "$USER" = nobody && test -z "$HIDDEN"'
    os.environ["HIDDEN"] = "x"
    try:
        command = ["sh", "-c", checks, "sh", str(who.user), " ".join(map(str, who.groups))]
        assert asked(command, who, timeoutSeconds=30) == ""
        assert asked(["test", "-z", "x"], timeoutSeconds=30) == "command failed with exit code 1"
    finally:
        del os.environ["HIDDEN"]


def test_a_user_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="--exec-probes-user nobody-here: this machine has no such user"):
        RunAs.user_named("nobody-here")


def commanded(*command: str, name: str = "a", **labels: str) -> dict[str, Any]:
    probe = {"readinessProbe": {"exec": {"command": list(command)}}} if command else {}
    return pod(name, probe, metadata={"labels": labels})


@pytest.mark.attack
@in_cluster(hooks=(refuse_commands,))
async def test_only_admins_may_say_a_command(here: Here) -> None:
    code, status = await here.send("POST", PODS, commanded("id"), user="node")
    assert (code, status["reason"]) == (403, "Forbidden")
    assert 'User "node" cannot set the command of a probe: only the role admin may' in status["message"]
    assert (await here.send("POST", PODS, commanded("id")))[0] == 201
    assert (await here.send("PUT", f"{PODS}/a", commanded("id", x="1"), user="node"))[0] == 200, "it was there"
    assert (await here.send("PUT", f"{PODS}/a", commanded("rm"), user="node"))[0] == 403
    patch = [{"op": "replace", "path": "/spec/containers/0/readinessProbe/exec/command/0", "value": "rm"}]
    assert (await here.send("PATCH", f"{PODS}/a", patch, patch="json-patch+json", user="node"))[0] == 403
    assert (await here.send("POST", PODS, commanded(name="b"), user="node"))[0] == 201
