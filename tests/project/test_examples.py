"""Every example in the documents is run (tests/project/test_examples_run.py), or read by its program's own parser."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.examples.accepted import complaint, simple_commands
from tests.examples.blocks import COMMANDS, DATA, DOCUMENTS, ROOT, Example, blocks, commands_of, indented, name_of
from tests.examples.classes import EVERYWHERE, NO_PROGRAM, NOT_RUN, reasons
from tests.examples.stages import STAGES, is_run

IDS = [name_of(document) for document in DOCUMENTS]


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_every_block_has_a_kind_that_a_test_reads(document: Path) -> None:
    assert [each.where for each in blocks(document) if each.kind not in (*COMMANDS, *DATA)] == []
    assert list(indented(document)) == [], "a fence with a kind, so that it is tested"


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_every_block_is_what_its_kind_says(document: Path) -> None:
    for block in blocks(document):
        text = "\n".join(block.lines)
        if block.kind == "yaml":
            assert list(yaml.safe_load_all(text)), block.where
        elif block.kind == "python":
            ast.parse(text)
        elif block.kind == "ini":
            assert all(not line or line[0] in "[#;" or "=" in line for line in block.lines), block.where
        elif block.kind == "text":
            assert not [line for line in block.lines if line.startswith(("$ ", "# vipwire"))], block.where


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_a_shell_reads_every_example(document: Path) -> None:
    scripts = [each.command.replace("…", "") for each in commands_of(document)]
    done = subprocess.run(["bash", "-n"], input="\n".join(scripts), capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_every_example_is_run_or_has_a_reason_and_is_read_by_its_program(document: Path) -> None:
    wrong = []
    for example in commands_of(document):
        if not is_run(example):
            wrong += [f"{example.where}: {said}" for said in (*without_reason(example), *complaints(example))]
    assert wrong == []


def lines_of(example: Example) -> list[str]:
    """Part a script into its commands, a line each; what is given to one of them is not one."""
    text = re.sub(r"<<-?'?([A-Z]+)'?(.*?)\n.*?\n\1$", r"\2", example.command, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip().removeprefix("sudo ") for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and line.split()[0] not in NO_PROGRAM and line[0] != "#"]


def without_reason(example: Example) -> list[str]:
    return [
        f"{line}: run it in a stage, or say in tests/examples/classes.py why nobody does"
        for line in lines_of(example)
        if not reasons(example, line)
    ]


def complaints(example: Example) -> list[str]:
    asked = ((words, complaint(words)) for words in simple_commands(example.command))
    return [f"{' '.join(words)}: {said}" for words, said in asked if said]


def test_no_reason_stands_for_what_is_not_there() -> None:
    used = {
        found
        for document in DOCUMENTS
        for example in commands_of(document)
        if not is_run(example)
        for line in lines_of(example)
        for found in reasons(example, line)
    }
    there = {("", begin) for begin in EVERYWHERE} | {(page, begin) for page in NOT_RUN for begin in NOT_RUN[page]}
    assert there - used == set()


def test_what_is_said_to_be_run_on_another_page_is() -> None:
    run = {example.command for document in DOCUMENTS for example in commands_of(document) if is_run(example)}
    for begin, reason in NOT_RUN["README.md"].items():
        if reason.endswith("and is run"):
            assert [each for each in run if each.startswith(begin.removeprefix(".venv/bin/"))], begin


def test_the_files_that_reasons_name_are_there() -> None:
    said = [reason for table in (EVERYWHERE, *NOT_RUN.values()) for reason in table.values()]
    named = {path for reason in said for path in re.findall(r"\b(?:tests|docs)/[\w/.*-]+\.(?:py|md)", reason)}
    assert named
    assert [path for path in named if not list(ROOT.glob(path))] == []


def test_every_stage_runs_pages_that_are_there() -> None:
    there = {each.where.partition(":")[0] for document in DOCUMENTS for each in commands_of(document)}
    assert {page for stage in STAGES for page in stage.pages} <= there


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("vipwire statsu", "No such command 'statsu'"),
        ("vipwire status --no-such-flag", "No such option"),
        ("vipwire proxy --no-such-flag", "no-such-flag"),
        ("vipwire up --bind-addres 10.0.0.1", "No such option"),
        ("vipwire lab exec node-1 -- vipwire statsu", "No such command 'statsu'"),
        ("make dinner", "no target"),
        ("python -m bench --service-count 1", "bench"),
    ],
)
def test_what_a_program_does_not_take_is_noticed(line: str, part: str) -> None:
    assert [part in said for said in complaints(Example("here:1", line))] == [True]


def test_a_command_that_nobody_has_heard_of_is_noticed() -> None:
    assert without_reason(Example("here:1", "make image\nvipwire status")) == [
        "vipwire status: run it in a stage, or say in tests/examples/classes.py why nobody does"
    ]
