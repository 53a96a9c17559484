"""ipvs mode in the suite: virtual servers, the device of VIPs, ipsets and iptables' legacy tables."""

from tests.proxy.conformance.mode import Command, Harm, Mode, Others

from vipwire.model.net import Family


def _each(ipv4: str, ipv6: str) -> dict[Family, Command]:
    return {Family.IPV4: ("sh", "-c", ipv4), Family.IPV6: ("sh", "-c", ipv6)}


def _both(text: str) -> dict[Family, Command]:
    """Write a command for both families: `{ip}` is the family's iptables, `{set}` the prefix of its ipsets."""
    return _each(
        text.replace("{ip}", "iptables-legacy").replace("{set}", "KUBE-"),
        text.replace("{ip}", "ip6tables-legacy").replace("{set}", "KUBE-6-"),
    )


_SERVERS = {Family.IPV4: "/-[tu] [0-9]|-f [0-9]+ +-[^6]*$|--sctp-service [0-9]/", Family.IPV6: r"/\[| -6/"}


def _listing(then: str) -> dict[Family, Command]:
    """List everything of vipwire's except draining servers, which go with their last connection.

    The port 7777 is that of other virtual servers, see below.
    """
    text = "{ ipvsadm -Sn | awk '!/:7777/ && !/ -w 0$/ && %s'"
    text += "; ip %s -o address show dev kube-ipvs0 | awk '!/fe80/ {print $4}'"
    text += (
        "; {ip}-save | grep KUBE- | sed 's/ \\[.*//'; ipset save | grep -E '^(create|add) %s'; } 2>/dev/null " + then
    )
    four = text % (_SERVERS[Family.IPV4], "-4", "KUBE-[^6]")
    six = text % (_SERVERS[Family.IPV6], "-6", "KUBE-6")
    return {Family.IPV4: _both(four)[Family.IPV4], Family.IPV6: _both(six)[Family.IPV6]}


_USE = "iptables-legacy -w -t mangle -%s OUTPUT -p tcp -m set --match-set KUBE-CLUSTER-IP dst -j RETURN"
_FLUSH = "for t in nat filter mangle; do {ip} -t $t -F && {ip} -t $t -X; done"
_IPVS = Harm(
    wipes={
        "the device is removed": _both("ip link delete kube-ipvs0"),
        "everything is flushed": _both(f"{_FLUSH}; ipvsadm -C; ipset flush; ip link delete kube-ipvs0"),
    },
    # tests/proxy/kernel/ipvs/features.py does all other kinds of damage, in less time.
    pieces={
        "an element is removed": _both("ipset del {set}CLUSTER-IP {vip},tcp:80"),
    },
    extra=_each(
        "ipvsadm -a -t {vip}:80 -r 203.0.113.250:80 -m -w 1000",
        "ipvsadm -a -t [{vip}]:80 -r [2001:db8:113::250]:80 -m -w 1000",
    ),
    listing=_listing("| sed -E 's/ (initval|hashsize|bucketsize) [0-9a-fx]+//g'"),
    exact=_listing(""),
    passing="(?!)",
    # A set of vipwire's name with another type cannot be replaced while a rule uses it.
    obstacle=(
        ("sh", "-c", f"read go; ipset create KUBE-CLUSTER-IP bitmap:port range 0-9; {_USE % 'I'}; cat; {_USE % 'D'}"),
        "go\n",
    ),
)

_SERVER = "ipvsadm -A -t 203.0.113.77:7777 -s wlc && ipvsadm -a -t 203.0.113.77:7777 -r 203.0.113.78:80 -i"
_SIX = "ipvsadm -A -u [2001:db8:77::7]:7777 -s sh"
_SET = "ipset create others hash:ip && ipset add others 203.0.113.79"
_CHAIN = (
    "for ip in iptables ip6tables; do $ip-legacy -t nat -N OTHERS; $ip-legacy -t nat -I PREROUTING -j OTHERS; done"
)
_NO_SERVERS = "ipvsadm -D -t 203.0.113.77:7777; ipvsadm -D -u [2001:db8:77::7]:7777; ipset destroy others"
_NO_CHAIN = (
    "for ip in iptables ip6tables; do $ip-legacy -t nat -D PREROUTING -j OTHERS; $ip-legacy -t nat -X OTHERS; done"
)
_OTHERS = Others(
    make=tuple(("sh", "-c", text) for text in (_SERVER, _SIX, _SET, _CHAIN)),
    listing=(
        ("sh", "-c", "ipvsadm -Sn | grep 7777; ipset save others"),
        ("sh", "-c", "for ip in iptables ip6tables; do $ip-legacy-save -t nat | grep OTHERS | grep -v ^:; done"),
    ),
    remove=tuple(("sh", "-c", text) for text in (_NO_SERVERS, _NO_CHAIN)),
)


IPVS = (
    Mode(
        "ipvs",
        _IPVS,
        _OTHERS,
        watchful="4s",  # in the guest's kernel a check takes about a second, and delays other processes
        alarmed=False,
        sampled=True,  # a guest has one CPU, some five times slower: all cases would take almost an hour
        tardy=True,
        flags=("--nodeport-addresses=primary",),  # by default it serves all addresses, as kube-proxy's ipvs mode
    ),
)
