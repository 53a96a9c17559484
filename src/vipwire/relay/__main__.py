"""The process of a relay: `python -m vipwire.relay NAME DESCRIPTOR`.

NAME is that of its socket (`local_sockets`). When it listens there, or cannot, it says so on the inherited descriptor
and closes it. It outlives the process that has started it: neither a restart nor an upgrade cuts connections.
"""

import gc
import os
import signal
import sys

from vipwire.errors import VipwireError
from vipwire.process_lifecycle.file_limits import raise_limit
from vipwire.process_lifecycle.local_sockets import listen
from vipwire.relay.loop import EventLoop
from vipwire.relay.relay import ControlSocket, Relay


def main() -> int:
    """Relay until told to retire."""
    name, tell = sys.argv[1], int(sys.argv[2])
    if os.fork():
        return 0  # whoever has started us need not wait for the relay, which may outlive him
    os.dup2(0, 2)  # nor for its standard error, which is /dev/null from here on
    limit = raise_limit()
    try:
        listening = listen(name)
    except (OSError, VipwireError) as error:
        os.write(tell, f"the socket {name}: {error}".encode())
        return 1
    listening.settimeout(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = EventLoop()
    relay = Relay(loop, limit, os.getpid())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))  # with all connections
    ControlSocket(loop, relay, listening, os.geteuid())
    os.close(tell)
    # Connections are freed when they end; a collection that walks over all of them would stop the relaying.
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
