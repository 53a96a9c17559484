"""`vipwire completion`: what a shell needs to complete commands, flags and their values.

Commands that have click's options are completed by click. The proxy's flags are read in Go's style, so
`config.flag_help` describes them to click, for completion only.
"""

import os

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_VIPWIRE_COMPLETE"
"""Where the shell says that it wants completions; the name is click's, made of the program's."""
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


def prepare() -> None:
    """Join the words that bash has split, where a shell asks for completions.

    Bash parts words at `=`: `--proxy-mode=ip` comes as three, of which click does not expect the one in the middle.
    """
    if os.environ.get(VARIABLE) != "bash_complete":
        return
    words, at = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0"))
    kept = [index for index, word in enumerate(words) if word != "=" or index == at]
    os.environ["COMP_WORDS"] = "\n".join(words[index] for index in kept)
    os.environ["COMP_CWORD"] = str(sum(index < at for index in kept))
