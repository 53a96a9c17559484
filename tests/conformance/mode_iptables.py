"""iptables mode, as the suite sees it: once with iptables-nft and once with iptables-legacy."""

from tests.conformance.mode import Command, Harm, Mode

from vipwire.model.net import Family

PROGRAMS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}


def _run(variant: str, text: str) -> dict[Family, Command]:
    """Write a command of the tool for each family."""
    return {family: (f"{program}-{variant}", *text.split()) for family, program in PROGRAMS.items()}


def _save(variant: str) -> dict[Family, Command]:
    """List what is ours in all tables, without counters."""
    return {
        family: ("sh", "-c", f"{program}-{variant}-save | grep KUBE- | sed 's/ \\[[0-9:]*\\]$//'")
        for family, program in PROGRAMS.items()
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
        obstacle=(("flock", "/run/xtables.lock", "cat"), "x\n"),
    )


IPTABLES = (Mode("iptables", _harm("nft")),)
