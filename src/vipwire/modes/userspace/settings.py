"""The operator's settings of userspace mode."""

import enum

from vipwire.model.value import Value


class Bind(enum.Enum):
    """The relay's addresses; the value is that of `--userspace-bind`.

    RULES: ports of its own, to which iptables rules lead. The others use no rules: the VIPs themselves, or ports of
    its own, which the log names.
    """

    RULES = ""
    VIP = "vip"
    NONE = "none"


class Choices(Value, frozen=True):
    """The settings.

    `ports` are [first, last] of `--proxy-port-range`, (0, 0) for any; the timeout is in seconds.
    `localhost_node_ports`: 127.0.0.1 and ::1 serve node ports, too.
    """

    bind: Bind = Bind.RULES
    ports: tuple[int, int] = (0, 0)
    udp_timeout: float = 0.25
    localhost_node_ports: bool = True
