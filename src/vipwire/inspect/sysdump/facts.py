"""The parts of an archive about this machine. Each function returns text; a failure costs only that text."""

import platform
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from vipwire import __version__
from vipwire.config.configuration import Config
from vipwire.config.file import dump_config
from vipwire.config.flags import list_explicit_flags
from vipwire.errors import VipwireError
from vipwire.inspect.check.facts import gather_facts
from vipwire.inspect.check.findings import check_document, list_findings
from vipwire.inspect.command.show import write_json
from vipwire.inspect.difference import diff_document, write_script
from vipwire.inspect.node.situation import Situation, observe_situation, open_kernel
from vipwire.inspect.node.source import read_objects
from vipwire.inspect.status.counts import read_observed_counts
from vipwire.inspect.status.document import build_proxy_document, build_status_document, build_unread_document
from vipwire.linux.host.addresses import read_addresses
from vipwire.model.net import format_address
from vipwire.proxy_daemon.start.record import read_record
from vipwire.proxy_daemon.view import changes_file
from vipwire.reconcile.delta import Delta

Part = Callable[[], str]
_TOOLS: Final = (("nft", "--version"), ("iptables", "--version"), ("ipvsadm", "--version"), ("haproxy", "-v"))
_SYSCTLS: Final = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/ip_local_port_range")
_LINES: Final = 5000
_SECONDS: Final = 20.0
_MOST: Final = 16 << 20


def list_machine_parts(config: Config) -> Iterator[tuple[str, Part]]:
    yield "versions.txt", _describe_versions
    yield "kernel.txt", _describe_kernel
    yield "addresses.txt", _describe_addresses
    yield "configuration.yaml", lambda: dump_config(config)
    yield "flags.txt", lambda: "\n".join(_list_flags(config)) + "\n"
    yield "proxy.json", lambda: write_json(build_proxy_document(config), indent=2)
    mode = config.proxy_mode
    yield "check.json", lambda: write_json(check_document(list_findings(gather_facts(config), mode), mode), indent=2)
    yield "changes.jsonl", lambda: _read_file(changes_file(config.state_dir))
    pages = {"metrics.txt": config.metrics_bind_address, "healthz.json": config.healthz_bind_address}
    for name, address in pages.items():
        if address:
            yield name, partial(_fetch_page, address, name.partition(".")[0])
    yield "journal.txt", _read_journal
    for path in sorted(Path("/etc/vipwire").glob("*.env")):
        yield f"etc/{path.name}", partial(_read_file, path)
    yield from _list_haproxy_parts()


def list_situation_parts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield status, rules and differences; without objects the status alone."""
    try:
        store = read_objects(config)
    except VipwireError as error:
        yield "status.json", write_json(build_unread_document(config, error), indent=2)
        return
    with open_kernel(config) as kernel:
        situation = observe_situation(config, store, kernel)
        services = list(store.services.values())
        counts = read_observed_counts(situation)
        yield (
            "status.json",
            write_json(build_status_document(situation, services, counts, build_proxy_document(config)), indent=2),
        )
        yield "diff.json", write_json(diff_document(situation, None), indent=2)
        yield from _list_rules(situation)


def _list_rules(situation: Situation) -> Iterator[tuple[str, str]]:
    for side in situation.sides:
        if side.observed is None or side.mode is None:
            yield f"rules-{side.family.value.lower()}.txt", f"{side.obstacle}\n"
            continue
        lines = write_script(side, Delta(added=dict(side.observed)))
        yield f"rules-{side.family.value.lower()}.txt", "\n".join(lines) + "\n"


def _describe_versions() -> str:
    lines = [f"vipwire {__version__}", f"Python {sys.version}", " ".join(platform.uname())]
    for name, flag in _TOOLS:
        lines.append(f"{name}: {_run_command([name, flag]).strip() if shutil.which(name) else 'not installed'}")
    return "\n".join(lines) + "\n" + _read_file(Path("/etc/os-release"))


def _describe_kernel() -> str:
    tracking = Path("/proc/sys/net/netfilter").glob("nf_conntrack_*")
    names = [*_SYSCTLS, *(f"net/netfilter/{each.name}" for each in sorted(tracking))]
    return "\n".join(f"{name} = {_read_setting(name)}" for name in names) + "\n\n" + _read_file(Path("/proc/modules"))


def _read_setting(name: str) -> str:
    try:
        return _read_file(Path("/proc/sys") / name).strip()
    except OSError as error:
        return f"({error.strerror})"


def _describe_addresses() -> str:
    return "".join(
        f"{each.interface} {format_address(each.address)}/{each.prefix_length}\n" for each in read_addresses()
    )


def _list_flags(config: Config) -> Iterator[str]:
    _, record = read_record(config.state_dir)
    yield "# of this command and its sources"
    yield from list_explicit_flags(config)
    yield "# of the proxy here"
    yield from record.flags if record is not None else ()


def _fetch_page(address: str, path: str) -> str:
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104  # a listener on all addresses
    url = f"http://{host}:{port}/{path}"
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # the scheme is above
        content: bytes = answer.read(_MOST)
    return content.decode(errors="replace")


def _read_journal() -> str:
    if shutil.which("journalctl") is None:
        return "journalctl: not installed\n"
    return _run_command(["journalctl", "--no-pager", "--output=short-iso", f"--lines={_LINES}", "--unit=vipwire*"])


def _list_haproxy_parts() -> Iterator[tuple[str, Part]]:
    for folder in sorted(Path("/run").glob("vipwire-*")):
        for path in sorted((*folder.rglob("haproxy*.cfg"), *folder.rglob("*.map"))):
            name = f"haproxy/{folder.name}/{path.relative_to(folder)}"
            yield name, partial(_read_file, path)


def _run_command(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    return done.stdout + done.stderr


def _read_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST)
    except FileNotFoundError:
        return ""
