"""Starts `vipwire up` from the values of its flags."""

from pathlib import Path
from typing import Any

import click

from vipwire.config.sections import Logging
from vipwire.logging import log
from vipwire.process_lifecycle import event_loop
from vipwire.terminal.output import MISUSED, plain_errors
from vipwire_up.claim_data_dir import claim_up
from vipwire_up.up import run
from vipwire_up.up_settings import read_setting


def start(flags: dict[str, Any]) -> None:
    log.configure(Logging())
    with plain_errors(MISUSED):
        setting = read_setting(flags)
    if setting.proxy is not None:
        log.configure(setting.proxy.logging)

    def ready(url: str, kubeconfig: Path) -> None:
        click.echo(f"API server at {url}")
        for line in setting.summary():
            click.echo(line)
        click.echo(f"try: kubectl --kubeconfig {kubeconfig} get namespaces")

    with plain_errors(), claim_up(setting, takeover=flags["takeover"]):
        event_loop.run(run(setting, ready))
