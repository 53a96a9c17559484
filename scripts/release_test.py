"""Installs, uses, upgrades and removes the packages on fresh systems with a live systemd: `make release-test`.

    python -m scripts.release_test --dist dist [--before last/] [--suite bookworm] [--way deb]

mmdebstrap makes the root of each release of Debian (and of Ubuntu, for the tree), with systemd and HAProxy, without
Python. A machine boots there (scripts/machines.py), without a network but the Ethernet of the test, on which a web
server and a client are. While the client asks a Service and an Ingress, the package is upgraded: no request may fail.
With --before each machine begins with the last release, and goes back to it. At the end the list of the system's
files is the one from before, except for the data that are kept. With `--way three-servers`, three machines with the
package take the walk of docs/three-servers.md (scripts/three_servers.py).
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from scripts.environment import ROOT, wheel_options
from scripts.interpreters import SUITES, own_architecture, run
from scripts.machines import Ethernet, Host, Machine, until

UBUNTU: Final = "noble"
UBUNTU_KEYS: Final = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
"""Debian has no package of it."""
_INCLUDED: Final = "systemd,systemd-sysv,dbus,iproute2,curl,ca-certificates,procps,nftables"
SERVERS: Final = "three-servers"
WAYS: Final = {"deb": (*SUITES,), "pip": ("bookworm",), "tree": (*SUITES, UBUNTU), SERVERS: ("bookworm",)}
_CACHED: Final = "apt-get install --download-only --yes python3 libstdc++6 python3-venv"
_FILES: Final = (
    "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/log "
    "-o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /root "
    "-o -path /var/tmp -o -path /var/lib/private \\) -prune -o -print | sort"
)
_FRONT: Final = """\
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: vipwire}
spec: {controller: vipwire.io/ingress}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: site}
spec:
  ingressClassName: vipwire
  defaultBackend: {service: {name: web, port: {number: 80}}}
"""
_SERVER: Final = "python3 -m http.server --bind {address} --directory {folder} {port}"
_ADMIN: Final = "export KUBECONFIG=/var/lib/vipwire/admin.kubeconfig"
_NODE_PORT: Final = "kubectl get service web -o jsonpath={.spec.ports[0].nodePort}"


@dataclass
class Client:
    """Asks addresses again and again, each by a connection of its own, and counts failures."""

    host: Host
    urls: tuple[str, ...]
    asked: dict[str, int] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        for url in self.urls:
            self.asked[url], self.failed[url] = 0, []
            self._threads.append(threading.Thread(target=self._ask, args=(url,), daemon=True))
            self._threads[-1].start()

    def _ask(self, url: str) -> None:
        while not self._ended.is_set():
            done = self.host.run("curl", "-sS", "--fail", "--max-time", "5", "--output", "/dev/null", url)
            self.asked[url] += 1
            if done.returncode:
                self.failed[url].append(done.stderr.strip())
            time.sleep(0.02)

    def end(self) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()
        for url in self.urls:
            say(f"  {url}: {len(self.failed[url])} of {self.asked[url]} requests failed")
        if any(self.failed.values()):
            raise RuntimeError(f"requests failed: {self.failed}")


class System:
    """A fresh system on the Ethernet, and who uses it."""

    def __init__(self, machine: Machine, client: Host) -> None:
        self.machine, self.client = machine, client
        self.port = ""
        self.units = ["vipwire-up"]
        self.do("systemctl disable --now haproxy 2>&1")
        self.before = self.files()

    def do(self, script: str) -> str:
        """Run a line as root, and show it; return its output. Raise RuntimeError if it fails."""
        say(f"{self.machine.name}# {script.splitlines()[0]}")
        done = self.machine.shell(script)
        if done.returncode:
            raise RuntimeError(f"{script}\n{done.stdout}{done.stderr}")
        return done.stdout.strip() + done.stderr.strip()

    def files(self) -> set[str]:
        return set(self.machine.shell(_FILES).stdout.splitlines())

    def use(self) -> None:
        """Start the API server, with a Service of a web server."""
        self.do("vipwire install systemd up")
        self.machine.write("/etc/vipwire/up.env", "VIPWIRE_UP_FLAGS=--no-dns -- --masquerade-all\n")
        self.do("systemctl enable --now vipwire-up")
        self.do("vipwire expose web --type NodePort --port 80 --to 10.0.0.21:8080 --check http:/")
        self.port = self.do(f"{_ADMIN}; {_NODE_PORT}")
        self.wait()

    def use_ingress(self) -> None:
        """Start the Ingress controller, with an Ingress of the Service."""
        self.do("vipwire install systemd --now ingress")
        self.units.append("vipwire-ingress")
        self.machine.write("/root/front.yaml", _FRONT)
        self.do(f"{_ADMIN}; kubectl apply -f /root/front.yaml")
        self.wait()

    def wait(self) -> None:
        for url in self.urls:
            until(partial(self.answers, url), f"{url} answers")

    def answers(self, url: str) -> bool:
        return not self.client.run("curl", "-sSf", "-m", "2", "-o", "/dev/null", url).returncode

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the addresses of the Service and, if its controller runs, of the Ingress."""
        return f"http://{self.machine.address}:{self.port}/", *(
            [f"http://{self.machine.address}/"] * (len(self.units) - 1)
        )

    def processes(self) -> dict[str, str]:
        """Return the main process of each unit."""
        show = "systemctl show -p MainPID --value"
        return {name: self.machine.shell(f"{show} {name}").stdout.strip() for name in self.units}

    def upgrade(self, command: str) -> None:
        """Run a command that upgrades: every unit is restarted, and no request fails."""
        before = self.processes()
        client = Client(self.client, self.urls)
        client.begin()
        time.sleep(1)
        say(self.do(command))
        time.sleep(1)
        client.end()
        after = self.processes()
        if left := [name for name in self.units if before[name] == after[name] or after[name] == "0"]:
            raise RuntimeError(f"not restarted: {', '.join(left)}")

    def check_removed(self, *kept: str) -> None:
        """Compare the system's files, units, rules and processes with those from before."""
        new = {path for path in self.files() - self.before if not path.startswith(kept or ("\0",))}
        gone = self.before - self.files()
        if new or gone:
            raise RuntimeError(f"left: {sorted(new)[:20]}; missing: {sorted(gone)[:20]}")
        for script in (
            "! systemctl list-units --all --no-legend 'vipwire*' | grep .",
            "! nft list tables | grep vipwire",
            "! pgrep -f '[v]ipwire'",
        ):
            self.do(script)


def file_of(suite: str, way: str) -> str:
    """Return the pattern of the release's file that a system installs."""
    if way in ("deb", SERVERS):
        return f"vipwire_*+deb{SUITES[suite].number}_{own_architecture()}.deb"
    if way == "pip":
        return "vipwire-*.whl"
    return f"vipwire-*-linux-{own_architecture()}.tar.gz"


def _install(packages: str) -> str:
    """Return the command that installs packages, newer or older ones; its output ends with the scripts' lines."""
    options = "--yes --quiet=2 --allow-downgrades -o Dpkg::Options::=--force-confdef"
    return f"set -o pipefail; DEBIAN_FRONTEND=noninteractive apt-get install {options} {packages} 2>&1 | tail -n 4"


def live(system: System, new: str, again: str, before: str) -> None:
    """Install, use, upgrade, go back, upgrade. `before` installs the last release, or is blank."""
    say(system.do(before or new))
    system.use()
    if before:
        system.upgrade(new)
    system.use_ingress()
    system.upgrade(again)
    if before:
        system.do(before)
        system.do("systemctl restart vipwire-up vipwire-ingress")
        system.wait()
        system.upgrade(new)
    say(system.do("vipwire version"))


def try_deb(system: System, suite: str, *, before: bool) -> None:
    """Walk the package's life, to its removal and purge."""
    new, older = (f"/root/{folder}/{file_of(suite, 'deb')}" for folder in ("dist", "before"))
    system.do(_install("python3 libstdc++6"))
    system.before = system.files()
    live(system, _install(new), _install(f"--reinstall {new}"), _install(older) if before else "")
    say(system.do("dpkg -V vipwire; /usr/lib/vipwire/bin/python -c 'import grpc'"))
    say(system.do("apt-get remove --yes vipwire 2>&1 | tail -n 12"))
    system.do("test -e /var/lib/vipwire/admin.kubeconfig && test -e /etc/vipwire/up.env")
    system.do("apt-get purge --yes vipwire; rm -r /etc/vipwire /var/lib/vipwire")
    system.check_removed("/usr/lib/python3")


def try_pip(system: System, *, before: bool) -> None:
    """Walk the life of an environment made as docs/install.md says; pip finds the locked wheels in a folder."""
    system.do(_install("python3-venv"))
    system.before = system.files()
    system.machine.write("/etc/pip.conf", "[global]\nno-index = true\nfind-links = /root/wheels\n")
    pip = "/opt/vipwire/bin/pip install --quiet"
    new, older = (f'{pip} "$(echo /root/{folder}/vipwire-*.whl)[all,etcd]"' for folder in ("dist", "before"))
    upgrade = " && vipwire install systemd --upgrade"
    system.do("python3 -m venv /opt/vipwire && ln -s /opt/vipwire/bin/vipwire /usr/local/bin/vipwire")
    again = f"{pip} --force-reinstall --no-deps /root/dist/vipwire-*.whl{upgrade}"
    live(system, f"{new}{upgrade}", again, f"{older}{upgrade}" if before else "")
    say(system.do("vipwire uninstall"))
    system.do("rm -r /opt/vipwire /usr/local/bin/vipwire /etc/pip.conf")
    system.check_removed("/etc/vipwire", "/var/lib/vipwire", "/usr/lib/python3")


def try_tree(system: System, *, before: bool) -> None:
    """Walk the tree's life, installed over HTTP, to its end with and without --purge."""
    fetch, older = (
        f"curl -fsSO http://10.0.0.21:{port}/install.sh && sh install.sh --from http://10.0.0.21:{port}"
        for port in (8081, 8082)
    )
    if not system.machine.shell("command -v python3").returncode:
        raise RuntimeError("the root has a Python")
    live(system, fetch, fetch, older if before else "")
    say(system.do("vipwire uninstall"))
    system.check_removed("/etc/vipwire", "/var/lib/vipwire")
    system.do("test -e /var/lib/vipwire/admin.kubeconfig && test -e /etc/vipwire/up.env")
    system.do(fetch)
    say(system.do("vipwire uninstall --purge"))
    system.do("test ! -e /etc/vipwire && test ! -e /var/lib/vipwire && test ! -e /opt/vipwire")
    system.check_removed()


def make_root(suite: str, way: str, to: Path, keys: Path) -> None:
    """Make the root of a release, with what apt needs to install Python, for SERVERS also etcd, without a network."""
    more = ("openssl", " etcd-server etcd-client haproxy") if way == SERVERS else ("haproxy", "")
    options = ["--quiet", "--variant=minbase", f"--include={_INCLUDED},{more[0]}"]
    if suite in SUITES:
        options += ["--skip=cleanup/apt/cache,cleanup/apt/lists", f'--customize-hook=chroot "$1" {_CACHED}{more[1]}']
    source = f"deb [signed-by={keys.resolve()}] http://archive.ubuntu.com/ubuntu {UBUNTU} main"
    run("mmdebstrap", *options, suite, to, *([source] if suite == UBUNTU else ()))


def complete(root: Path, dist: Path, before: Path | None) -> None:
    """Copy the release, the last one, and kubectl into a root."""
    for name, source in (("dist", dist), ("before", before)):
        shutil.rmtree(root / "root" / name, ignore_errors=True)
        if source:
            shutil.copytree(source, root / "root" / name, ignore=shutil.ignore_patterns("*.tar.gz", "*.oci*"))
    shutil.copy(ROOT / ".venv/bin/kubectl", root / "usr/bin/kubectl")


def try_system(suite: str, way: str, root: Path, dist: Path, before: Path | None) -> None:
    complete(root, dist, before)
    if way == "pip":
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", root / "root/wheels")
        run(*pip, *wheel_options(SUITES[suite], own_architecture()), "-r", ROOT / "requirements/etcd.lock")
    with Ethernet() as ethernet:
        web = ethernet.host("web", "10.0.0.21")
        for port, folder in ((8080, ROOT / "docs"), (8081, dist), (8082, before or dist)):
            web.start(
                sys.executable, "-m", "http.server", "--bind", web.address, "--directory", str(folder), str(port)
            )
        client = ethernet.host("client", "10.0.0.100")
        system = System(ethernet.machine("a", "10.0.0.1", root), client)
        say(f"--- {suite}, {way}: {system.do('. /etc/os-release; echo $PRETTY_NAME')}")
        try:
            if way == "deb":
                try_deb(system, suite, before=bool(before))
            elif way == "pip":
                try_pip(system, before=bool(before))
            else:
                try_tree(system, before=bool(before))
        except (RuntimeError, subprocess.TimeoutExpired):
            say(system.machine.shell("journalctl --no-pager -q -n 60 -o cat").stdout)
            raise


def try_servers(root: Path, dist: Path) -> None:
    """Walk docs/three-servers.md, which finds the package in /root."""
    shutil.copy(ROOT / ".venv/bin/kubectl", root / "usr/bin/kubectl")
    for package in dist.glob(file_of("bookworm", "deb")):
        shutil.copy(package, root / "root")
    say("--- docs/three-servers.md, deb")
    if subprocess.run([sys.executable, "-m", "scripts.three_servers", f"--root={root}"], check=False).returncode:
        raise SystemExit("the walk of docs/three-servers.md failed")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.release_test", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--before", type=Path, help="a folder with the last release, to upgrade from and go back to")
    parser.add_argument("--suite", action="append", choices=[*SUITES, UBUNTU])
    parser.add_argument("--way", action="append", choices=[*WAYS])
    parser.add_argument("--roots", type=Path, help="a folder that keeps the roots for the next time")
    parser.add_argument("--ubuntu-keys", type=Path, default=UBUNTU_KEYS, help="the keys of Ubuntu's archive")
    given = parser.parse_args()
    if not given.suite and not given.ubuntu_keys.exists():
        say(f"Ubuntu is left out: {given.ubuntu_keys} is missing")
    suites = given.suite or [*SUITES, *([UBUNTU] if given.ubuntu_keys.exists() else ())]
    ways = given.way or [each for each in WAYS if each != SERVERS]
    trials = [(suite, way) for suite in suites for way in ways if suite in WAYS[way]]
    for pattern in {file_of(*trial) for trial in trials}:
        for folder in (given.dist, *([given.before] if given.before else ())):
            if len(found := list(folder.glob(pattern))) != 1:
                raise SystemExit(f"{folder} has {len(found)} files {pattern}, and needs one: make release")
    with tempfile.TemporaryDirectory(prefix="vipwire-roots-") as name:
        for suite, way in trials:
            root = (given.roots or Path(name)) / (SERVERS if way == SERVERS else suite)
            if not root.exists():
                say(f"making the root of {suite}{', with etcd' if way == SERVERS else ''}")
                root.parent.mkdir(parents=True, exist_ok=True)
                make_root(suite, way, root, given.ubuntu_keys)
            if way == SERVERS:
                try_servers(root, given.dist)
            else:
                try_system(suite, way, root, given.dist, given.before)
    say(f"as it should be: {', '.join(f'{way} on {suite}' for suite, way in trials)}")


if __name__ == "__main__":
    main()
