"""`vipwire view`: the command."""

from pathlib import Path

import click

from vipwire.config.configuration import VIEW_PORT, Config
from vipwire.inspect.command.options import LookCommand
from vipwire.inspect.page.serving import Serving, run_page
from vipwire.process.terminal import note, say


@click.command(cls=LookCommand)
@click.option(
    "--allowed-host", "hosts", multiple=True, metavar="NAME", help="A DNS name for this server, beside its IP."
)
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the token; made if it does not exist.")
@click.option("--beside-proxy", is_flag=True, hidden=True)
@click.option("--until-input-ends", is_flag=True, hidden=True)
def view(
    config: Config, hosts: tuple[str, ...], token_file: Path | None, *, beside_proxy: bool, until_input_ends: bool
) -> None:
    """Serve a page that shows Services, endpoints, rates, rules and changes, live, for a browser.

    It is at http://127.0.0.1:10247/ unless --view-bind-address says otherwise. Beyond loopback it asks for a token,
    which is in the file view-token of --state-dir, and there is no TLS: prefer `ssh -L 10247:127.0.0.1:10247 NODE`.
    It shows what `status`, `top`, `explain`, `plan` and `diff` show, and changes nothing. `vipwire proxy` and
    `vipwire up` serve the same page with --view-bind-address.
    """
    address = config.view_bind_address or f"127.0.0.1:{VIEW_PORT}"

    def ready(url: str, token: Path | None) -> None:
        if beside_proxy:
            return
        say(f"Serving at {url}" + (f"?token={token.read_text(encoding='ascii').strip()}" if token else ""))
        note("Interrupt to end.")

    names = frozenset(name.lower() for name in hosts)
    bound = beside_proxy or until_input_ends
    run_page(config, Serving(address, names, token_file, beside=beside_proxy, bound=bound), ready)
