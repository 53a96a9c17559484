"""Programs that write nat rules beside vipwire, each with a rule from port 443 of the node to another Pod.

Tests run Debian's CNI portmap and firewalld. The rules of a host port, of AWS' connmark and of a masquerading network
plugin are written here, for iptables and for nft.
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import Caller, family_of

from vipwire.model.net import Family, format_endpoint, parse_address
from vipwire_lab.cluster.outcome import Target

PORT: Final = 443
OTHER: Final = "pod-1b"
"""The Pod with the host port."""
_PORTMAP: Final = Path("/usr/lib/cni/portmap")
_BUS: Final = """<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/>
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/></policy></busconfig>"""
_MARK: Final = "0x80/0x80"
PODS: Final = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/48"}
NFT: Final = {Family.IPV4: "ip", Family.IPV6: "ip6"}
Loading = Callable[[Cluster, Path], contextlib.AbstractContextManager[None]]
"""Loads the rules of a program for the block, given a folder of its own."""


def iptables(cluster: Cluster, family: Family, *arguments: str) -> None:
    """Run the mode's iptables: its own variant, otherwise that of nf_tables."""
    program = "iptables" if family is Family.IPV4 else "ip6tables"
    cluster.lab.run(cluster.node_name, [f"{program}-{_variant(cluster)}", "-w", "5", *arguments])


def explain_kernel(cluster: Cluster, caller: Caller, target: Target) -> dict[str, Any]:
    """Run `vipwire explain` on the node; return its `kernel`, with the chains of other programs in `earlier`."""
    to = f"{format_endpoint(parse_address(target.address), target.port)}/{target.protocol.label}"
    source = cluster.address(caller, family_of(target))
    said = cluster.proxy.vipwire("explain", to, "--from", source, "-o", "json", *cluster.proxy.flags)
    kernel: dict[str, Any] = json.JSONDecoder().raw_decode(said)[0]["kernel"]
    return kernel


def _variant(cluster: Cluster) -> str:
    # User-Mode Linux, where ipvs runs, has no nf_tables.
    return "legacy" if cluster.mode.variant == "legacy" or cluster.mode.name == "ipvs" else "nft"


def nft(cluster: Cluster, text: str) -> None:
    cluster.lab.run(cluster.node_name, ["nft", "-f", "-"], input=text)


def clear(cluster: Cluster) -> None:
    """Remove the nat tables of iptables-nft, so that the next rule makes them; empty those of iptables-legacy."""
    for family in Family:
        name = f"{NFT[family]} nat"
        if cluster.mode.name != "ipvs":
            nft(cluster, f"add table {name}; delete table {name}")
        if _variant(cluster) == "legacy":
            iptables(cluster, family, "-t", "nat", "-F")
            iptables(cluster, family, "-t", "nat", "-X")


def _target(cluster: Cluster, family: Family) -> str:
    address = cluster.lab.address_of(OTHER, family)
    return f"[{address}]:8080" if family is Family.IPV6 else f"{address}:8080"


@contextlib.contextmanager
def host_port_rules(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Write the host port rules of CNI plugins before 0.7.5 and of container runtimes."""
    del folder
    for family in Family:
        for words in (
            "-N HOSTPORT",
            f"-A HOSTPORT -p tcp --dport {PORT} -j DNAT --to-destination {_target(cluster, family)}",
            "-A PREROUTING -m addrtype --dst-type LOCAL -j HOSTPORT",
            "-A OUTPUT -m addrtype --dst-type LOCAL -j HOSTPORT",
        ):
            iptables(cluster, family, "-t", "nat", *words.split())
    yield


@contextlib.contextmanager
def host_port_chains(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Write base chains as Docker, netavark and newer portmap plugins do: at nft's dstnat."""
    del folder
    for family in Family:
        table, address = f"{NFT[family]} hostports", _target(cluster, family)
        nft(
            cluster,
            f"""add table {table}
add chain {table} hostports
add rule {table} hostports tcp dport {PORT} dnat to {address}
add chain {table} prerouting {{ type nat hook prerouting priority dstnat; }}
add rule {table} prerouting fib daddr type local jump hostports
add chain {table} output {{ type nat hook output priority -100; }}
add rule {table} output fib daddr type local jump hostports
""",
        )
    try:
        yield
    finally:
        nft(cluster, "".join(f"delete table {name} hostports\n" for name in NFT.values()))


@contextlib.contextmanager
def portmap(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Let Debian's portmap plugin publish a host port, as a container runtime would."""
    ips = [
        {"address": f"{cluster.lab.address_of(OTHER, family)}/{24 if family is Family.IPV4 else 64}", "interface": 0}
        for family in Family
    ]
    version = "1.0.0"
    network = {
        "cniVersion": version,
        "name": "lab",
        "type": "portmap",
        "snat": True,
        "runtimeConfig": {"portMappings": [{"hostPort": PORT, "containerPort": 8080, "protocol": "tcp"}]},
        "prevResult": {"cniVersion": version, "interfaces": [{"name": "eth0", "sandbox": "/any"}], "ips": ips},
    }
    names = {"CNI_CONTAINERID": "lab", "CNI_NETNS": "/any", "CNI_IFNAME": "eth0", "CNI_PATH": str(_PORTMAP.parent)}
    for program in ("iptables", "ip6tables"):
        found = shutil.which(f"{program}-{'legacy' if cluster.mode.variant == 'legacy' else 'nft'}")
        assert found is not None
        (folder / program).symlink_to(found)
    lock = {name: os.environ[name] for name in ("XTABLES_LOCKFILE",) if name in os.environ}
    environment = names | lock | {"PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"}

    def call(verb: str) -> None:
        given = environment | {"CNI_COMMAND": verb}
        cluster.lab.run(cluster.node_name, [str(_PORTMAP)], input=json.dumps(network), env=given)

    call("ADD")
    try:
        yield
    finally:
        call("DEL")


@contextlib.contextmanager
def firewalld(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Run Debian's firewalld on its own bus, with a forwarded port."""
    bus, configuration = folder / "bus", folder / "bus.conf"
    configuration.write_text(_BUS.format(path=bus))
    (folder / "zones").mkdir()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={bus}"}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    lab, node = cluster.lab, cluster.node_name
    log = folder / "log"
    started: list[subprocess.Popen[Any]] = []

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return lab.run(node, ["firewall-cmd", *words], env=environment, check=False)

    try:
        daemon = ["dbus-daemon", f"--config-file={configuration}", "--nofork", "--nopidfile"]
        started.append(lab.popen(node, daemon, **quiet))
        until(bus.exists, "the bus is there")
        daemon = ["firewalld", "--nofork", "--nopid", "--system-config", str(folder), "--log-target", "file"]
        started.append(lab.popen(node, [*daemon, "--log-file", str(log)], **quiet))
        until(lambda: ask("--state").returncode == 0, lambda: f"firewalld runs: {log.read_text()}")
        rich = "rule family={} forward-port port={} protocol=tcp to-port=8080 to-addr={}"
        for words in (
            ["--set-default-zone=trusted"],
            *([f"--add-rich-rule={rich.format(f.value.lower(), PORT, lab.address_of(OTHER, f))}"] for f in Family),
        ):
            done = ask(*words)
            assert done.returncode == 0, done.stdout + done.stderr
        yield
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


@contextlib.contextmanager
def marks_of_new_connections(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Write the rules of the Amazon VPC CNI until 2026: marked packets leave the Pods' network by another route."""
    del folder
    with _lost_if_marked(cluster):
        for family in Family:
            for words in (
                "-N OUT",
                f"-A OUT -d {PODS[family]} -j RETURN",
                f"-A OUT -j CONNMARK --set-xmark {_MARK}",
                "-A PREROUTING -i pod-1+ -m conntrack --ctstate NEW -j OUT",
                "-A PREROUTING -j CONNMARK --restore-mark --mask 0x80",
            ):
                iptables(cluster, family, "-t", "nat", *words.split())
        yield


@contextlib.contextmanager
def marks_in_a_nat_chain(cluster: Cluster, folder: Path) -> Iterator[None]:
    """The same as a nat chain of nft at dstnat."""
    del folder
    with _lost_if_marked(cluster):
        for family in Family:
            table = f"{NFT[family]} marks"
            nft(
                cluster,
                f"""add table {table}
add chain {table} prerouting {{ type nat hook prerouting priority dstnat; }}
add rule {table} prerouting iifname "pod-1*" {NFT[family]} daddr != {PODS[family]} ct mark set 0x80 meta mark set 0x80
""",
            )
        try:
            yield
        finally:
            nft(cluster, "".join(f"delete table {name} marks\n" for name in NFT.values()))


@contextlib.contextmanager
def _lost_if_marked(cluster: Cluster) -> Iterator[None]:
    """Drop marked packets, in place of another route."""
    versions = [["ip", "-4"], ["ip", "-6"]]
    rule = f"rule {{}} fwmark {_MARK} lookup 99"
    for ip in versions:
        cluster.lab.run(cluster.node_name, [*ip, *["route", "add", "blackhole", "default", "table", "99"]])
        cluster.lab.run(cluster.node_name, [*ip, *rule.format("add").split()])
    try:
        yield
    finally:
        for ip in versions:
            cluster.lab.run(cluster.node_name, [*ip, *rule.format("delete").split()])
            cluster.lab.run(cluster.node_name, [*ip, *["route", "flush", "table", "99"]])


def _second(cluster: Cluster, family: Family) -> str:
    found = [each for each in cluster.node(cluster.node_name).addresses if (":" in each) is (family is Family.IPV6)]
    return found[1]


@contextlib.contextmanager
def source_nat_rules(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Write a network plugin's source NAT for packets from the Pods' network, here to the second address."""
    del folder
    for family in Family:
        words = f"-A POSTROUTING -p tcp --dport 8080 -j SNAT --to-source {_second(cluster, family)}"
        iptables(cluster, family, "-t", "nat", *words.split())
    yield


@contextlib.contextmanager
def source_nat_chains(cluster: Cluster, folder: Path) -> Iterator[None]:
    """The same as a base chain of nft at srcnat."""
    del folder
    for family in Family:
        table = f"{NFT[family]} sources"
        nft(
            cluster,
            f"""add table {table}
add chain {table} postrouting {{ type nat hook postrouting priority srcnat; }}
add rule {table} postrouting tcp dport 8080 snat to {_second(cluster, family)}
""",
        )
    try:
        yield
    finally:
        nft(cluster, "".join(f"delete table {name} sources\n" for name in NFT.values()))
