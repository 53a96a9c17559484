"""userspace mode in the suite."""

from tests.proxy.conformance.mode import Command, Harm, Mode

from vipwire.model.net import Family

FLAGS = ("--nodeport-addresses=primary", "--iptables-localhost-nodeports=false")
"""By default this mode serves node ports at all addresses, and on loopback."""
TOOLS = {Family.IPV4: "iptables-nft", Family.IPV6: "ip6tables-nft"}


def _iptables(text: str) -> dict[Family, Command]:
    return {family: (tool, "-w", "5", *text.split()) for family, tool in TOOLS.items()}


def _shell(text: str) -> dict[Family, Command]:
    return {family: ("sh", "-c", text.replace("TOOL", tool)) for family, tool in TOOLS.items()}


_OWNED = "add table ip filter; delete table ip filter; add table ip filter { flags owner; }"
_HARM = Harm(
    wipes={
        "the nat table is flushed": _iptables("-t nat -F"),
        "everything is flushed": dict.fromkeys(Family, ("nft", "flush ruleset")),
    },
    pieces={
        "a chain is emptied": _iptables("-t nat -F KUBE-PORTALS-CONTAINER"),
        "a jump is removed": _shell(
            'TOOL-save -t nat | grep -e "-A PREROUTING.*KUBE-PORTALS-CONTAINER" | sed s/-A/-D/ | '
            "xargs TOOL -w 5 -t nat"
        ),
        "a refusal is removed": _iptables("-t filter -F KUBE-PORTALS-REFUSE"),
    },
    extra=_iptables("-t filter -I KUBE-PORTALS-FILTER -p tcp --dport 80 -j DROP"),
    listing=_shell("(TOOL-save -t nat; TOOL-save -t filter) | grep KUBE- | sort"),
    exact=_shell("(TOOL-save -t nat; TOOL-save -t filter) | grep KUBE- | sort"),
    passing=r"\[\d+:\d+\]",
    # Only a table's owner can change it, and the table ends with its owner.
    obstacle=(
        ("nft", "-i"),
        f"{_OWNED}; add chain ip filter KUBE-OBSTACLE\n",
    ),
)
_SOURCE = "a relay connects from the node: no endpoint sees its clients (vipwire.io/proxy-protocol tells it of them)"
SOURCES = dict.fromkeys(("S36", "S39", "S40", "S41", "S42", "S43"), _SOURCE)
"""Missing features too; but their tests prove other sentences as well, and skip source addresses."""

USERSPACE = (
    Mode(
        "userspace",
        _HARM,
        flags=FLAGS,
        # All cases in both families, 1,184, take five and a half minutes of CPU time.
        sampled=True,
        relays=True,
        no_sctp="a relay would be the end of an association: its streams, messages and further addresses are lost",
    ),
)
