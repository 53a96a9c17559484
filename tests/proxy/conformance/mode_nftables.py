"""nftables mode in the suite."""

from tests.proxy.conformance.mode import Command, Harm, Mode

from vipwire.model.net import Family

TABLES = {Family.IPV4: ("ip", "vipwire"), Family.IPV6: ("ip6", "vipwire")}


def _nft(text: str, *options: str) -> dict[Family, Command]:
    """Write an nft command for each family's table; `{table}` is family and name."""
    return {family: ("nft", *options, text.replace("{table}", " ".join(table))) for family, table in TABLES.items()}


TABLE_HARM = Harm(
    wipes={
        "the table is flushed": _nft("flush table {table}"),
        "the table is deleted": _nft("delete table {table}"),
        "everything is flushed": dict.fromkeys(Family, ("nft", "flush ruleset")),
    },
    pieces={
        "a rule is removed": _nft("flush chain {table} services"),
        "an element is removed": _nft("delete element {table} service-ips { {vip} . tcp . 80 }"),
        "a map is emptied": _nft("flush map {table} service-endpoints"),
    },
    extra=_nft("insert rule {table} services tcp dport 80 drop"),
    listing=_nft("list table {table}", "-s"),
    exact=_nft("list table {table}", "-s", "-a"),
    passing=r"(?s)\t(?:map affinity(?:-local)?/\S+|set (?:connections|traffic[a-z-]*|refused-[a-z-]+)) \{.*?\n\t\}\n",
    # Only a table's owner can change it, and the table ends with its owner.
    obstacle=(("nft", "-i"), "add table ip vipwire { flags owner; }\n"),
)

NFTABLES = (Mode("nftables", TABLE_HARM, alarmed=False, one_family=True),)

# After the handshake a connection bypasses the rules. Few kernels of test machines have flowtables.
OFFLOADING = (
    Mode(
        "nftables",
        TABLE_HARM,
        variant="offload",
        alarmed=False,
        flags=("--offload-packet-threshold=1",),
        excludes=frozenset({"--count-traffic"}),
    ),
)
