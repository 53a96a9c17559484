"""Starts a command: `vipwire proxy` at once, all others through click.

click does not parse the proxy's command line, whose flags are Go's. Importing click would take a tenth of the CPU
time until a small cluster's Services work.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec, module_from_spec
from typing import Any

from vipwire.process_lifecycle import cyclic_garbage, early_signals
from vipwire.process_lifecycle.early_signals import end_by_sigterm


def start() -> None:
    command, *words = sys.argv[1:] or [""]
    if command == "proxy" and "_VIPWIRE_COMPLETE" not in os.environ:
        _run_proxy(words)
    from vipwire.cli.main import main  # noqa: PLC0415  # heavy, and the proxy goes on without it

    main(prog_name="vipwire")


def _run_proxy(words: Sequence[str]) -> None:
    """Run the proxy and exit; return for `--help` and `--version`, which click prints."""
    end_by_sigterm()
    early_signals.record_signals()
    cyclic_garbage.disable_collection()
    cyclic_garbage.limit_heap()
    install_lean_prometheus()
    from vipwire.cli.proxy import parse_given_flags, run_command  # noqa: PLC0415  # from here on a SIGHUP ends nothing

    given = parse_given_flags(words)
    if not given.get("help") and not given.get("version"):
        sys.exit(run_command(given))


def install_lean_prometheus() -> None:
    """Install prometheus_client for imports of its modules. Call this before any other import of it.

    The package's own code imports http.server, urllib.request and wsgiref, a tenth of all imports at the proxy's
    start, which vipwire does not use. So the code runs at the first use of a name of the package.
    """
    name = "prometheus_client"
    spec = find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    package, loader = module_from_spec(spec), spec.loader

    def completed(wanted: str) -> Any:
        if find_spec(f"{name}.{wanted}") is not None:
            raise AttributeError(wanted)  # a module of the package: the import system loads it
        vars(package).pop("__getattr__", None)
        loader.exec_module(package)
        return getattr(package, wanted)

    vars(package)["__getattr__"] = completed
    sys.modules[name] = package
