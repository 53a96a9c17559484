"""iptables mode in the suite: each case with iptables-nft, one case of each test with iptables-legacy.

One renderer writes the rules of both families, so each case runs in one. A test without cases runs in one family
here, and in the other there.
"""

from tests.proxy.conformance.mode import OTHER_TABLES, Command, Harm, Mode, Others

from vipwire.model.net import Family

PROGRAMS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
FLAGS = ("--nodeport-addresses=primary", "--iptables-localhost-nodeports=false")
"""kube-proxy's iptables mode serves node ports at all addresses, and on 127.0.0.1."""


def _run(variant: str, text: str) -> dict[Family, Command]:
    return {family: (f"{program}-{variant}", *text.split()) for family, program in PROGRAMS.items()}


def _save(variant: str) -> dict[Family, Command]:
    """List vipwire's rules of all tables, without counters."""
    return {
        family: (
            "sh",
            "-c",
            f"{program}-{variant}-save | grep KUBE- | grep -v KUBE-IPTABLES-HINT | sed 's/ \\[[0-9:]*\\]$//'",
        )
        for family, program in PROGRAMS.items()
    }


_OBSTACLES: dict[str, tuple[Command, str]] = {
    # Only a table's owner can change it, and the table ends with its owner.
    "nft": (
        ("nft", "-i"),
        (
            "add table ip mangle; delete table ip mangle; add table ip mangle { flags owner; }; "
            "add chain ip mangle KUBE-OBSTACLE\n"
        ),
    ),
    "legacy": (
        (
            "sh",
            "-c",
            (
                "read go; iptables-legacy -t mangle -N KUBE-OBSTACLE; flock $XTABLES_LOCKFILE cat;"
                " iptables-legacy -t mangle -X KUBE-OBSTACLE"
            ),
        ),
        "go\n",
    ),
}


def _harm(variant: str) -> Harm:
    return Harm(
        wipes={
            "nat is flushed": _run(variant, "-t nat -F"),
            "filter is flushed": _run(variant, "-t filter -F"),
        },
        pieces={
            "a rule is removed": _run(variant, "-t nat -D KUBE-POSTROUTING 1"),
            "a chain is emptied": _run(variant, "-t nat -F KUBE-MARK-MASQ"),
            "dispatch is emptied": _run(variant, "-t nat -F KUBE-SERVICES"),
        },
        extra=_run(variant, "-t nat -I KUBE-SERVICES -p tcp --dport 80 -j RETURN"),
        listing=_save(variant),
        exact=_save(variant),
        passing="(?!)",
        obstacle=_OBSTACLES[variant],
    )


def _others(variant: str) -> Others:
    """Commands for a chain and rules beside vipwire's in the same tables, and tables of nft."""
    both = [f"{program}-{variant}" for program in PROGRAMS.values()]
    made = ("-N OTHERS", "-A OTHERS -p udp -j RETURN", "-I FORWARD -j OTHERS", "-A INPUT -p tcp --dport 9 -j DROP")
    gone = ("-D INPUT -p tcp --dport 9 -j DROP", "-D FORWARD -j OTHERS", "-F OTHERS", "-X OTHERS")
    return Others(
        make=(*OTHER_TABLES.make, *((tool, "-t", "mangle", *text.split()) for tool in both for text in made)),
        listing=(
            *OTHER_TABLES.listing,
            *(("sh", "-c", f"{tool}-save -t mangle | grep -v -e KUBE- -e '^[#:]'") for tool in both),
        ),
        remove=(*OTHER_TABLES.remove, *((tool, "-t", "mangle", *text.split()) for tool in both for text in gone)),
    )


_HINT = ("iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
"""kubelet's chain if it uses the legacy tools: vipwire follows it."""

IPTABLES = (
    Mode("iptables", _harm("nft"), _others("nft"), variant="nft", flags=FLAGS, one_family=True),
    Mode(
        "iptables",
        _harm("legacy"),
        _others("legacy"),
        variant="legacy",
        flags=FLAGS,
        prepare=(_HINT,),
        sampled=True,
    ),
)
