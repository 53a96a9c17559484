"""`vipwire completion`: what a shell needs to complete commands, flags and their values.

Commands that have click's options are completed by click. The proxy's flags are no options of click's (they are read
in Go's style), so they are described to it here, out of their table; only for completion.
"""

import os
from functools import cache
from typing import Any

import click
from click.shell_completion import get_completion_class

from vipwire.app.config import LocalMode, ProxyMode
from vipwire.app.config_schema import ValueKind
from vipwire.app.flags_table import FLAGS, Flag, Group

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_VIPWIRE_COMPLETE"
"""Where the shell says that it wants completions; the name is click's, made of the program's."""
_FILES = frozenset({"config", "kubeconfig", "write-config-to", "manifests"})
_CHOICES = {
    "proxy-mode": tuple(mode.value for mode in ProxyMode),
    "detect-local-mode": tuple(mode.value for mode in LocalMode),
    "logging-format": ("text", "json"),
}
_INSTALL = """\
\b
bash:  echo 'eval "$(vipwire completion bash)"' >> ~/.bashrc
zsh:   echo 'eval "$(vipwire completion zsh)"' >> ~/.zshrc       (after compinit)
fish:  vipwire completion fish > ~/.config/fish/completions/vipwire.fish
"""


@click.command(epilog=_INSTALL)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, flags and values in a shell."""
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"{shell}: not known; allowed are {', '.join(SHELLS)}")
    click.echo(made(click.Group("vipwire"), {}, "vipwire", VARIABLE).source())


@cache
def flag_options() -> tuple[click.Option, ...]:
    """Describe the proxy's flags as options of click's, those of old versions left out."""
    return tuple(_option(flag) for flag in FLAGS.values() if flag.group is not Group.OLD)


def _option(flag: Flag) -> click.Option:
    name = f"flag_{flag.name.replace('-', '_')}"
    # As in --help: `-v`, not `--v`.
    words = (f"-{flag.short}",) if flag.short == flag.name else (f"--{flag.name}",)
    short = (f"-{flag.short}",) if flag.short and flag.short != flag.name else ()
    if flag.kind is ValueKind.BOOL:
        return click.Option([*words, *short, name], is_flag=True, help=flag.help)
    return click.Option([*words, *short, name], type=_type(flag.name), multiple=flag.repeats, help=flag.help)


def _type(name: str) -> click.ParamType[Any]:
    if name in _FILES:
        return click.Path()
    return click.Choice(_CHOICES[name]) if name in _CHOICES else click.STRING


def prepare() -> None:
    """Put together what bash has parted, where a shell asks for completions.

    Bash parts words at `=`: `--proxy-mode=ip` comes as three, of which click does not expect the one in the middle.
    """
    if os.environ.get(VARIABLE) != "bash_complete":
        return
    words, at = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0"))
    kept = [index for index, word in enumerate(words) if word != "=" or index == at]
    os.environ["COMP_WORDS"] = "\n".join(words[index] for index in kept)
    os.environ["COMP_CWORD"] = str(sum(index < at for index in kept))
