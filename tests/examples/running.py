"""Runs the examples of a stage in its shell, and reports differences from the document."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.examples.blocks import DOCUMENTS, Example, commands_of, name_of
from tests.examples.comparing import differs
from tests.examples.shell import Shell, lines
from tests.examples.stages import Stage

LOOKING: Final = 30.0
SOONER: Final = 0.2
LATER: Final = 1.5
"""Seconds until a command looks again, first and last: each look starts a process."""


def assert_as_shown(stage: Stage) -> None:
    """Run a stage; fail at the first differing example."""
    with Shell() as shell:
        status, said = shell.run(stage.setup)
        assert status == 0, said
        if stage.inside:
            shell.enter(stage.inside)
        for example in examples_of(stage):
            if first := first_of(stage, example):
                status, said = shell.run(first)
                assert status == 0, said
            wrong = run(shell, stage, as_it_is_here(shell, stage, example))
            assert not wrong, f"{example.where}: {example.command}\n{wrong}"


def examples_of(stage: Stage) -> Iterator[Example]:
    by_name = {name_of(document): document for document in DOCUMENTS}
    for page in stage.pages:
        yield from (each for each in commands_of(by_name[page]) if stage.runs(each))


def first_of(stage: Stage, example: Example) -> str:
    """Return the preparation that the text asks for before an example."""
    return "\n".join(done for begin, done in stage.before.items() if example.command.startswith(begin))


def as_it_is_here(shell: Shell, stage: Stage, example: Example) -> Example:
    """Replace the document's values in a command by this machine's."""
    command = example.command
    for written, asked in stage.stands_for.items():
        if written in command:
            command = command.replace(written, shell.run(asked)[1])
    return replace(example, command=command)


def run(shell: Shell, stage: Stage, example: Example) -> str:
    """Run an example; return the difference from the document. Commands that only look may run again."""
    end, pause = time.monotonic() + LOOKING, SOONER
    if example.command.startswith(stage.serving) or example.command.endswith(" &"):
        shown = (*example.shown, "…")
        return differs(shown, shell.begin(example.command).until(lambda said: not differs(shown, said)))
    varies = example.command.startswith(stage.numbers_vary)
    while wrong := judged(stage, example, *shell.run(example.command), numbers_vary=varies):
        if time.monotonic() > end or not example.command.startswith(stage.waited_for):
            return wrong
        shell.pause(pause)
        pause = min(2 * pause, LATER)
    return ""


def judged(stage: Stage, example: Example, status: int, said: str, *, numbers_vary: bool) -> str:
    """Return the error of a result: its exit status, or its output if the document shows one."""
    wrong = differs(example.shown, lines(said), numbers_vary=numbers_vary) if example.shown else ""
    if not wrong and status and not example.command.startswith(stage.fails):
        return f"exit status {status}: {said}"
    return wrong
