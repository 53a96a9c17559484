"""Checks whether the programs of an example accept its command line, without running them.

vipwire's own parsers run in this process; kubectl and helm parse all flags before `--help`, which is added.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from bench.__main__ import parser as bench_parser
from tests.examples.blocks import ROOT

from vipwire.cli.main import CleanupCommand, GoFlagsCommand, main
from vipwire.config.flags import build_config, parse_flags
from vipwire.errors import VipwireError

PROGRAMS: Final = Path(sys.executable).parent
SHELL_WORDS: Final = frozenset({"for", "do", "done", "cd", "exec", "export", "echo", "cat", "mkdir", "in", "("})
_SEPARATORS: Final = frozenset({";", "|", "&", "&&", "||", "\n"})
_BEFORE: Final = frozenset({"sudo", "nice", "exec", "do", "("})
_INSIDE: Final = re.compile(r"\$\(([^()]*)\)")
_ASSIGNMENT: Final = re.compile(r"^\w+=")


def simple_commands(script: str) -> Iterator[list[str]]:
    """Split a script at `;`, `|`, `&` and line ends; drop comments, redirections and assignments."""
    text = re.sub(r"<<-?'?([A-Z]+)'?(.*?)\n.*?\n\1$", r"\2", script, flags=re.DOTALL | re.MULTILINE)
    text = text.replace("\\\n", " ")
    yield from (words for inner in _INSIDE.findall(text) for words in simple_commands(inner))
    text = _INSIDE.sub("SAID", text)
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
        lexer.whitespace_split = True
        lexer.commenters = "#" if re.search(r"(^|\s)#", line) else ""
        words: list[str] = []
        redirected = False
        for word in lexer:
            if word in _SEPARATORS:
                yield from _stripped(words)
                words = []
            elif word.startswith(("<", ">")):
                redirected = True
                if words and words[-1].isdecimal():
                    words.pop()
            elif redirected:
                redirected = False
            else:
                words.append(word)
        yield from _stripped(words)


def _stripped(words: Sequence[str]) -> Iterator[list[str]]:
    left = [word for word in words if word not in ("…", "...")]
    while left and (left[0] in _BEFORE or _ASSIGNMENT.match(left[0]) or left[0].startswith("(")):
        left.pop(0)
    if left:
        yield left


def complaint(words: Sequence[str]) -> str | None:
    """Return the program's error for a command line, "" for none; None if the program cannot be asked."""
    program = Path(words[0]).name
    asked = _ASKED.get(program)
    return None if asked is None else asked(list(words[1:]))


def _vipwire(words: Sequence[str]) -> str:
    try:
        with _quiet():
            _resolve(main, "vipwire", list(words))
    except click.exceptions.Exit:
        return ""
    except (click.ClickException, VipwireError) as error:
        return error.format_message() if isinstance(error, click.ClickException) else str(error)
    except SystemExit as error:
        return f"ended with {error.code}" if error.code else ""
    return ""


def _resolve(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Let each command of the line parse its own words; files need not exist."""
    if isinstance(command, CleanupCommand | GoFlagsCommand):
        build_config({**parse_flags([word for word in words if word != "--all"]), "config": ""})
        return
    words = [word for word in words if not word.startswith("--config=")]
    with _files_anywhere(command):
        context = command.make_context(name, words, parent=parent)
    with context:
        rest = [*context._protected_args, *context.args]  # noqa: SLF001 - click names no other way
        if isinstance(command, click.Group) and rest:
            found, inner, rest = command.resolve_command(context, rest)
            assert found
            assert inner
            _resolve(inner, found, rest, context)
        elif context.params.get("command"):  # `lab exec HOST -- COMMAND`
            inside = [word for word in context.params["command"] if word != "--"]
            if said := complaint(inside):
                raise click.UsageError(said)


@contextlib.contextmanager
def _files_anywhere(command: click.Command) -> Iterator[None]:
    """Accept any path for a file; restores the command, which other tests share."""
    kept = {each: each.type for each in command.params if isinstance(each.type, click.Path | click.File)}
    for each in kept:
        each.type = click.Path()
    try:
        yield
    finally:
        for each, kind in kept.items():
            each.type = kind


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    kept = {name: os.environ.pop(name, None) for name in ("VIPWIRE_FLAGS", "KUBECONFIG")}
    try:
        nowhere = io.StringIO()
        with contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
            yield
    finally:
        os.environ.update({name: value for name, value in kept.items() if value is not None})


def _by_help(program: Path) -> Callable[[Sequence[str]], str]:
    def ask(words: Sequence[str]) -> str:
        own, behind = _parted(words)
        done = subprocess.run(
            [program, *own, "--help"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"HOME": str(ROOT / "build")},
        )
        said = done.stderr.strip() if done.returncode else ""
        return said or (complaint(behind) or "" if behind else "")

    return ask


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split kubectl's words from the command of a Pod."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def _make(words: Sequence[str]) -> str:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    unknown = [word for word in words if "=" not in word and word not in targets]
    return f"no target {unknown}" if unknown else ""


def _python(words: Sequence[str]) -> str:
    if words[:1] != ["-m"]:
        return "" if (ROOT / words[0]).exists() else f"there is no {words[0]}"
    module, rest = words[1], words[2:]
    if module == "bench" and rest[:1] not in (["plot"], ["flame"]):
        with _quiet():
            try:
                bench_parser().parse_args(rest)
            except (SystemExit, argparse.ArgumentError) as error:
                return f"bench: {error}"
    own = module.split(".")[0] in ("vipwire", "bench", "scripts", "tests")
    path = ROOT / ("src" if own and module.startswith("vipwire") else ".") / module.replace(".", "/")
    there = not own or path.with_suffix(".py").exists() or (path / "__init__.py").exists() or path.is_dir()
    paths = [word for word in rest if word.startswith(("tests/", "src/")) and "{" not in word]
    missing = [word for word in paths if not (ROOT / word.partition("::")[0]).exists()]
    return "" if there and not missing else f"there is no {module if not there else missing}"


_HELM: Final = ROOT / ".venv/tools/helm"
_KUBECTL: Final = PROGRAMS / "kubectl"
_ASKED: Final[Mapping[str, Callable[[Sequence[str]], str]]] = {
    "vipwire": _vipwire,
    "make": _make,
    "python": _python,
    **({"kubectl": _by_help(_KUBECTL)} if _KUBECTL.exists() else {}),
    **({"helm": _by_help(_HELM)} if _HELM.exists() else {}),
}
