"""The claim of `vipwire up`: its data directory and, if it runs a proxy, the network namespace. See `app.claim`."""

import contextlib
import hashlib
import os
import signal
from collections.abc import Iterator

from vipwire.app.claim import claim_proxy
from vipwire.cluster.up import Setting
from vipwire.process import log
from vipwire.process.single_instance import claimed


@contextlib.contextmanager
def claim_up(setting: Setting, *, takeover: bool) -> Iterator[None]:
    """Claim what this `up` is going to write; end it as a signal does when a successor wants its place.

    Raise AlreadyRunningError if another process has it.
    """
    folder = str(setting.folder.resolve())
    name = f"vipwire-up-{hashlib.sha256(folder.encode()).hexdigest()[:16]}"
    details = (f"data directory {folder}", f"API server at {setting.address} port {setting.port}")
    with contextlib.ExitStack() as stack:
        if setting.proxy is None:
            ready = (lambda: None) if takeover else None
            claim = stack.enter_context(claimed((name,), "vipwire up", details, ready=ready))
        else:
            claim = stack.enter_context(claim_proxy(setting.proxy, "vipwire up", (name,), details))
        claim.when_asked(_end)
        yield


def _end(successor: str) -> None:
    log.info("ending", reason=f"{successor} takes over")
    os.kill(os.getpid(), signal.SIGTERM)
