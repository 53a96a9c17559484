"""Deletes bootstrap tokens some time after they expired. They are refused already; this takes their secrets away.

Certificates outlive a token that expired, but not one that was deleted earlier. API servers whose clocks differ must
not take the one for the other: hence the pause.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.process import log
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.object import readable
from vipwire_up.api.registry import Registry
from vipwire_up.credentials.machine_records import NAMESPACE, TOKEN_PREFIX
from vipwire_up.joining.tokens import read_secret

_EVERY: Final = 60.0
_KEPT: Final = timedelta(minutes=10)
_OPTIONS: Final = Options(manager="vipwire-tokens", validation="Ignore")


async def delete_ended_tokens(registry: Registry, clock: Callable[[], datetime]) -> None:
    """Delete them, once a minute, until cancelled."""
    while True:
        await delete_once(registry, clock())
        await asyncio.sleep(_EVERY)


async def delete_once(registry: Registry, now: datetime) -> None:
    """Delete those that are over."""
    for record in tuple(registry.store.scan(SECRETS.id)):
        if record.key.namespace == NAMESPACE and record.key.name.startswith(TOKEN_PREFIX):
            token = read_secret(readable(record))
            if token is not None and token.ended(now - _KEPT):
                with contextlib.suppress(ApiError):  # gone, or the disk is full: again in a minute
                    await registry.delete(SECRETS, NAMESPACE, record.key.name, options=_OPTIONS)
                    log.info("deleted a bootstrap token whose time is over", token=token.id)
