"""Claims the data directory of `vipwire up` and, if it runs a proxy, the network namespace (`proxy.start.record`)."""

import contextlib
import hashlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from vipwire.config.configuration import Config
from vipwire.file_io.files import check_owner
from vipwire.logging import log
from vipwire.process_lifecycle.single_instance import claim_names
from vipwire.proxy_daemon.start.record import claim_proxy


@contextlib.contextmanager
def claim_folder(
    folder: Path, proxy: Config | None, command: str, details: Iterable[str] = (), *, takeover: bool
) -> Iterator[None]:
    """Claim a data directory and, with a proxy, the network namespace; end this process when a successor takes over.

    Raise AlreadyRunningError if another process holds the claim.
    """
    check_owner(folder, "--data-dir")
    name, details = _instance_name(folder), (f"data directory {folder.resolve()}", *details)
    with contextlib.ExitStack() as stack:
        if proxy is None:
            ready = (lambda: None) if takeover else None
            claim = stack.enter_context(claim_names((name,), command, details, ready=ready))
        else:
            claim = stack.enter_context(claim_proxy(proxy, command, (name,), details))
        claim.when_asked(_end_this_process)
        yield


def end_holding_process(folder: Path) -> None:
    """End the process that holds a data directory, and wait for its end. Raise AlreadyRunningError on timeout."""
    with claim_names((_instance_name(folder),), "vipwire leave", ready=lambda: None):
        pass


def _instance_name(folder: Path) -> str:
    return f"vipwire-up-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


def _end_this_process(successor: str) -> None:
    log.info("ending", reason=f"{successor} takes over")
    os.kill(os.getpid(), signal.SIGTERM)
