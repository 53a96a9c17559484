"""The process of a relay: `python -m vipwire.relay NAME DESCRIPTOR`.

NAME is its socket's (`local_sockets`). When the relay listens, or cannot, it reports on the inherited descriptor and
closes it. The relay outlives the process that started it, so that restarts and upgrades do not cut connections.
"""

import gc
import os
import signal
import sys

from vipwire.errors import VipwireError
from vipwire.process_lifecycle.file_limits import raise_limit
from vipwire.process_lifecycle.local_sockets import listen_at_name
from vipwire.relay.loop import EventLoop
from vipwire.relay.relay import ControlSocket, Relay


def main() -> int:
    name, tell = sys.argv[1], int(sys.argv[2])
    if os.fork():
        return 0  # the starter waits for this process, not for the relay
    os.dup2(0, 2)  # the starter reads standard error until its end
    limit = raise_limit()
    try:
        listening = listen_at_name(name)
    except (OSError, VipwireError) as error:
        os.write(tell, f"the socket {name}: {error}".encode())
        return 1
    listening.settimeout(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = EventLoop()
    relay = Relay(loop, limit, os.getpid())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))  # ends all connections, too
    ControlSocket(loop, relay, listening, os.geteuid())
    os.close(tell)
    # Connections are freed when they end; a garbage collection would walk over all of them and stop relaying.
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
