"""The operator's settings of userspace mode."""

import enum

from vipwire.model.value import Value


class Bind(enum.Enum):
    """Where the relay listens; the value is that of `--userspace-bind`.

    RULES: at ports of its own, and rules of iptables lead there. The others use no rules: at the VIPs themselves; at
    ports of its own, which the log tells.
    """

    RULES = ""
    VIP = "vip"
    NONE = "none"


class Choices(Value, frozen=True):
    """The settings. `ports` are [first, last] of `--proxy-port-range`, (0, 0) for any; the timeout is in seconds.

    `localhost_node_ports`: node ports are served at 127.0.0.1 and ::1 as well.
    """

    bind: Bind = Bind.RULES
    ports: tuple[int, int] = (0, 0)
    udp_timeout: float = 0.25
    localhost_node_ports: bool = True
