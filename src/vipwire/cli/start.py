"""Starts a command: `vipwire proxy` at once, all others through click.

click does not parse the proxy's command line, whose flags are Go's. Importing click would take a tenth of the CPU
time until a small cluster's Services work.
"""

import os
import sys
from collections.abc import Sequence

from vipwire.process_lifecycle import cyclic_garbage, early_signals, lean_prometheus
from vipwire.process_lifecycle.early_signals import end_by_sigterm


def start() -> None:
    command, *words = sys.argv[1:] or [""]
    if command == "proxy" and "_VIPWIRE_COMPLETE" not in os.environ:
        _proxy(words)
    from vipwire.cli.main import main  # noqa: PLC0415  # heavy, and the proxy goes on without it

    main(prog_name="vipwire")


def _proxy(words: Sequence[str]) -> None:
    """Run the proxy and exit; return for `--help` and `--version`, which click prints."""
    end_by_sigterm()
    early_signals.remember()
    cyclic_garbage.rest()
    lean_prometheus.prepare()
    from vipwire.cli.proxy import given_flags, run  # noqa: PLC0415  # from here on a SIGHUP ends nothing

    given = given_flags(words)
    if not given.get("help") and not given.get("version"):
        sys.exit(run(given))
