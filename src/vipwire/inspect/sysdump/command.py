"""`vipwire sysdump`: the command, and the archive that it writes."""

import io
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from vipwire.config.configuration import Config
from vipwire.errors import VipwireError
from vipwire.inspect.command.options import LookCommand
from vipwire.inspect.node.source import node_name
from vipwire.inspect.sysdump.facts import list_machine_parts, list_situation_parts
from vipwire.inspect.sysdump.objects import list_object_files
from vipwire.inspect.sysdump.redact import find_secrets, redact_text
from vipwire.terminal.output import print_line, print_note

_DATA_DIRS = (Path("/var/lib/vipwire"),)


@click.command(cls=LookCommand)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Path of the archive; the default is a new file in the current folder.",
)
def sysdump(config: Config, output: Path | None) -> None:
    """Collect the files for a bug report in one archive: configuration, check, status, rules, metrics, logs, objects.

    sysdump does not ask for Secrets, and leaves out private keys, tokens, passwords, other parties' annotations,
    values of headers, and similar texts. Read the archive before you send it: it has names and addresses of Services
    and Nodes. errors.txt names the parts that sysdump cannot read. Only the archive's owner can read it.
    """
    node = node_name(config)
    folder = f"vipwire-{node}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = output or Path(f"{folder}.tar.gz")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise VipwireError(f"{path}: cannot be written: {error.strerror}") from error
    known, errors = find_secrets(config, _DATA_DIRS), list[str]()
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in _collect_files(config, errors):
            _add_file(archive, f"{folder}/{name}", redact_text(text, known))
        _add_file(archive, f"{folder}/errors.txt", redact_text("".join(f"{each}\n" for each in errors), known))
    for each in errors:
        print_note(f"left out: {each}")
    print_line(f"{path}: {path.stat().st_size} bytes; read it before you send it")


def _collect_files(config: Config, errors: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each file; add unreadable files to `errors`."""
    for name, part in list_machine_parts(config):
        try:
            yield name, part()
        except (VipwireError, OSError, ValueError, subprocess.SubprocessError) as error:
            errors.append(f"{name}: {error}")
    for what, files in (("status, rules", list_situation_parts), ("objects", list_object_files)):
        try:
            yield from files(config)
        except (VipwireError, OSError) as error:
            errors.append(f"{what}: {error}")


def _add_file(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
    archive.addfile(member, io.BytesIO(content))
