"""Runs `vipwire proxy` and `vipwire cleanup`: reads flags, configures, and runs the action of a flag."""

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vipwire.config.configuration import Config
from vipwire.config.file import dump_config
from vipwire.config.flags import Given, build_config, parse_environment_flags, parse_flags
from vipwire.errors import VipwireError
from vipwire.file_io.files import write_named
from vipwire.logging import log
from vipwire.terminal.output import MISUSED, plain_errors


def parse_given_flags(words: Sequence[str]) -> Given:
    """Parse the flags of a command line and of the environment; exit with one line if they are wrong."""
    with plain_errors(MISUSED):
        return {**parse_environment_flags(), **parse_flags(words)}


def run_command(given: Given) -> int:
    """Run the proxy, or do what `--cleanup` or `--write-config-to` orders; return the exit status."""
    reread = partial(build_config, given)
    with plain_errors(MISUSED):
        config, warnings = reread()
    log.configure(config.logging)
    for warning in warnings:
        log.warning(warning)
    with plain_errors():
        if config.write_config_to:
            return _write_config(config)
        if config.cleanup:
            removed: int = importlib.import_module("vipwire.proxy_daemon.cleanup").run_cleanup(config)
            return removed
        status: int = importlib.import_module("vipwire.proxy_daemon.run").run_proxy(config, reread)
        return status


def _write_config(config: Config) -> int:
    try:
        write_named(Path(config.write_config_to), dump_config(config).encode(), "--write-config-to")
    except OSError as error:
        raise VipwireError(f"{config.write_config_to}: cannot write the configuration: {error.strerror}") from error
    return 0
