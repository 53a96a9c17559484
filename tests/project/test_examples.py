"""Every example in the documents is run (tests/project/test_examples_run.py), or read by its program's own parser."""

import ast
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.examples.accepted import complaint, simple_commands
from tests.examples.blocks import COMMANDS, DATA, DOCUMENTS, Example, blocks, commands_of, indented, name_of
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


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_every_example_is_run_or_read_by_its_program(document: Path) -> None:
    wrong = []
    for example in commands_of(document):
        if not is_run(example):
            wrong += [f"{example.where}: {said}" for said in complaints(example)]
    assert wrong == []


def complaints(example: Example) -> list[str]:
    asked = ((words, complaint(words)) for words in simple_commands(example.command))
    return [f"{' '.join(words)}: {said}" for words, said in asked if said]


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
