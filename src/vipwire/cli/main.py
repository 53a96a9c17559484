"""The command line: `vipwire proxy`, `cleanup`, `version`, and the commands of other packages.

`config.flags` parses the flags of `proxy` in Go's style, as kube-proxy does; click those of all other commands. Every
error is one line on stderr, without a traceback: the exit code is 2 for a wrong command line or configuration, 1 for
everything else. Commands import their modules when they run.
"""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from vipwire import __version__
from vipwire.model.text import find_nearest
from vipwire.process_lifecycle.early_signals import end_by_sigterm, record_signals
from vipwire.terminal.output import print_error

if TYPE_CHECKING:
    from vipwire.config.flags import Given

# fmt: off
_ELSEWHERE: Final = {
    "lab": ("vipwire_lab.cli", "lab", "Build a small cluster of network namespaces for tests."),
    "status": ("vipwire.inspect.cli", "status", "Show Services, their endpoints, and differences of the kernel."),
    "plan": ("vipwire.inspect.cli", "plan", "Show vipwire's plan for each Service, with reasons."),
    "diff": ("vipwire.inspect.cli", "diff", "Show the changes that a sync would make in the kernel."),
    "explain": ("vipwire.inspect.cli", "explain", "Show the way of a packet, with each rule and the endpoints."),
    "trace": ("vipwire.inspect.trace", "trace", "Follow new connections to Services, with their endpoints."),
    "top": ("vipwire.inspect.top", "top", "Show live rates for every Service and endpoint."),
    "view": ("vipwire.inspect.page.command", "view", "Serve a live page with Services and endpoints for a browser."),
    "drain": ("vipwire.inspect.drain", "drain", "Stop sending new connections to an endpoint from this node."),
    "check": ("vipwire.inspect.cli", "check", "Check this machine: modes, kernel settings, other programs."),
    "up": ("vipwire_up.cli", "up", "Run an API server, controllers, DNS and a proxy without a cluster."),
    "join": ("vipwire_up.joining_cli", "join", "Join a cluster of `vipwire up`, and serve its Services here."),
    "leave": ("vipwire_up.joining_cli", "leave", "Take this machine out of its cluster."),
    "token": ("vipwire_up.joining_cli", "token", "Create, list and delete bootstrap tokens for machines."),
    "expose": ("vipwire_up.cli", "expose", "Create a Service and its endpoints in a running `vipwire up`."),
    "ingress": ("vipwire_l7.ingress.cli", "ingress",
        "Serve Ingresses with HAProxy: hosts, paths, TLS, sticky sessions."),
    "gateway": ("vipwire_l7.gateway.cli", "gateway",
        "Serve the Gateway API with HAProxy: HTTP, gRPC, TLS and TCP routes."),
    "dns": ("vipwire_up.dns.cli", "dns", "Answer DNS queries for Services, and forward all others."),
    "store": ("vipwire_up.cli", "store", "Back up and restore the objects of `vipwire up`."),
    "connectivity": ("vipwire_lab.connectivity.cli", "connectivity",
        "Test Services of every kind on this Node, and show failures."),
    "sysdump": ("vipwire.inspect.sysdump.command", "sysdump",
        "Collect data for a bug report in one archive, without secrets."),
    "install": ("vipwire.cli.install", "install", "Install vipwire as a service of this machine."),
    "uninstall": ("vipwire.cli.uninstall", "uninstall", "Remove vipwire from this machine."),
}
"""Commands that are imported at their first use: module, attribute, and summary."""
# fmt: on
_EXTRAS: Final = {"vipwire_l7": "l7", "vipwire_up": "up", "vipwire_lab": "lab"}
"""By package: the extra of vipwire's distribution that installs its libraries."""
_REMOVED: Final = {"man": "the Debian package has the manual pages, and `make man` writes them"}


SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_VIPWIRE_COMPLETE"
"""The variable by which a shell asks for completions; click derives its name from the program's."""
_INSTALL: Final = """\
\b
bash:  echo 'eval "$(vipwire completion bash)"' >> ~/.bashrc
zsh:   echo 'eval "$(vipwire completion zsh)"' >> ~/.zshrc       (after compinit)
fish:  vipwire completion fish > ~/.config/fish/completions/vipwire.fish
"""
_TASKS: Final = {
    "Serve Services": ("proxy", "up", "join", "leave", "token", "ingress", "gateway", "dns", "cleanup"),
    "Look": ("status", "view", "explain", "plan", "diff", "top", "trace", "check", "connectivity", "sysdump"),
    "Change": ("drain", "expose", "store"),
    "Learn": ("lab",),
}
"""The commands by task, as `--help` lists them; all others come last."""


@contextlib.contextmanager
def _extra_named(name: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        command = name()
        extra = _EXTRAS.get(_ELSEWHERE.get(command, ("",))[0].partition(".")[0])
        if extra is None:
            raise
        text = f"`vipwire {command}` needs the package {error.name}: install `vipwire[{extra}]`"
        raise click.ClickException(text) from None


class LazyGroup(click.Group):
    """A group that lists commands without importing them, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = _ELSEWHERE[cmd_name]
        with _extra_named(lambda: cmd_name):
            command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{attribute} is not a command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. SIGTERM ends the process even if it is PID 1 of a container."""
        end_by_sigterm()
        with _extra_named(lambda: ctx.invoked_subcommand or ""):
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a command line; without one, suggest a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0] in _REMOVED:
                raise click.UsageError(f"`vipwire {args[0]}` was removed: {_REMOVED[args[0]]}", ctx) from None
            near = find_nearest(args[0], self.list_commands(ctx))
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near!r}?", error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by task, with their summaries, without importing lazy ones."""
        del ctx
        rows = self._summaries()
        named = {name for names in _TASKS.values() for name in names}
        tasks = {**_TASKS, "This program": tuple(sorted(rows.keys() - named))}
        widest = max(map(len, rows))
        for task, names in tasks.items():
            with formatter.section(task):
                formatter.write_dl([(name.ljust(widest), rows[name]) for name in names if name in rows])

    def _summaries(self) -> dict[str, str]:
        own = {name: command.get_short_help_str(90) for name, command in self.commands.items()}
        return own | {name: text for name, (_, _, text) in _ELSEWHERE.items()}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands, without importing them, and the group's own options."""
        rows = sorted(self._summaries().items())
        commands = [CompletionItem(name, help=text) for name, text in rows if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  # click's own
        **extra: Any,
    ) -> Any:
        if VARIABLE in os.environ:
            _join_split_words()
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            sys.exit(_print_usage_error(error))
        except click.Abort:
            sys.exit(128 + signal.SIGINT)
        sys.exit(status if isinstance(status, int) else 0)


def _print_usage_error(error: click.ClickException) -> int:
    """Print an error of click's in vipwire's style; return the exit status.

    A command without arguments prints its help. click puts choices on lines of their own, behind a tab.
    """
    if type(error).__name__ == "NoArgsIsHelpError":  # click before 8.2 prints the help itself
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if (context := getattr(error, "ctx", None)) is not None:  # UsageError has a context
        click.echo(context.get_usage(), err=True)
        click.echo(f"Try `{context.command_path} --help`.", err=True)
    print_error(error.format_message().replace("\n\t", " "))
    return error.exit_code


class GoFlagsCommand(click.Command):
    """A command with the flags of `config.flags`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the flags in Go's style; show the help or the version if requested."""
        if ctx.resilient_parsing:  # a shell completes an unfinished line
            from vipwire.config.flag_help import build_click_options  # noqa: PLC0415  # only a shell wants it

            self.params = list(build_click_options())
            return super().parse_args(ctx, args)
        record_signals()
        from vipwire.cli.proxy import parse_given_flags  # noqa: PLC0415  # from here on a SIGHUP ends nothing

        given = parse_given_flags(args)
        if given.get("help"):
            click.echo(ctx.get_help())
            ctx.exit()
        if given.get("version"):
            click.echo(f"vipwire {__version__}")
            ctx.exit()
        ctx.params["given"] = given
        return []

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from vipwire.config.flag_help import build_help_text  # noqa: PLC0415  # only needed for help

        formatter.write(f"{self.help}\n\nUsage:\n  {ctx.command_path} [flags]\n\n{build_help_text()}")


class CleanupCommand(GoFlagsCommand):
    """`cleanup`, which has the proxy's flags, and a shorter name for one of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `--all` as `--cleanup-all`."""
        return super().parse_args(ctx, ["--cleanup-all" if word == "--all" else word for word in args])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="vipwire %(version)s")
def main() -> None:
    """Make connections to Kubernetes Services reach Pods: in place of kube-proxy, or without a cluster."""


@main.command(
    cls=GoFlagsCommand,
    short_help="Make connections to Services on this node reach Pods.",
    help="Make connections to Services on this node reach Pods, in place of kube-proxy.\n\n"
    "Accepts kube-proxy's flags and configuration file unchanged. Flags are in Go's style: --flag=value or\n"
    "--flag value; booleans are --flag or --flag=false. A flag without meaning for vipwire causes a warning.",
)
def proxy(given: "Given") -> None:
    """Run the proxy, or do the one thing that a flag asks for instead."""
    sys.exit(_run(given))


@main.command(
    cls=CleanupCommand,
    short_help="Remove the rules that vipwire wrote on this node.",
    help="Remove the rules that vipwire wrote on this node.\n\n"
    "The same as `vipwire proxy --cleanup`. Use the flags of the proxy. The command refuses to run while a vipwire\n"
    "proxy runs here. If a kube-proxy runs, the command leaves rules with kube-proxy's names, and prints a notice;\n"
    "--all also removes them.",
)
def cleanup(given: "Given") -> None:
    """Remove what was programmed."""
    sys.exit(_run({**given, "cleanup": True}))


def _run(given: "Given") -> int:
    from vipwire.cli.proxy import run_command  # noqa: PLC0415  # not for --help

    return run_command(given)


@main.command()
def version() -> None:
    """Show the version."""
    click.echo(f"vipwire {__version__}")


@main.command(epilog=_INSTALL, short_help="Print a script that completes commands in a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, flags and values in a shell."""
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"{shell}: unknown shell; allowed: {', '.join(SHELLS)}")
    click.echo(made(click.Group("vipwire"), {}, "vipwire", VARIABLE).source())


def _join_split_words() -> None:
    """Join the words that bash has split at `=` in a request for completions.

    Bash passes `--proxy-mode=ip` as three words, of which click does not expect the middle one.
    """
    if os.environ[VARIABLE] != "bash_complete":
        return
    words, at = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0"))
    kept = [index for index, word in enumerate(words) if word != "=" or index == at]
    os.environ["COMP_WORDS"] = "\n".join(words[index] for index in kept)
    os.environ["COMP_CWORD"] = str(sum(index < at for index in kept))


if __name__ == "__main__":
    main()
