"""Does the walk of docs/three-servers.md by its text alone, on three machines with a live systemd.

    python -m scripts.three_servers [--watchdog] [--leader] [--root FOLDER]

Each block of the page is run as it stands, on the machines that the page names, in the page's order. The machines are
copies of this one, which must have etcd-server, haproxy, nftables, iproute2, curl, openssl, kubectl and systemd, and
`apt install` is left out. With --root they are copies of a fresh system (scripts/release_test.py makes it), whose
/root has the Debian package, and `apt install` is run. Web servers and a client are further hosts of the Ethernet.

Then each unit's main process is killed, and with --watchdog one is stopped until its watchdog bites: systemd must
start it anew. At last the machine that has the address loses its cable and is killed, while a client asks by TLS.
With --leader its API server is the elected one. Printed are the seconds until the first answer, and until none failed
any more, and what the client saw of each request that failed.
"""

import argparse
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from scripts.machines import Ethernet, Host, Machine, until

PAGE: Final = Path(__file__).parents[1] / "docs/three-servers.md"
SITE: Final = "https://site.example.com/"
ADDRESS: Final = "10.0.0.64"
LEADER: Final = "vipwire-controllers"
OWNER: Final = f"vipwire-address-{ADDRESS.replace('.', '-')}"
_SETTLED: Final = 10.0
"""Seconds until a started or elected server is at rest."""
FAILING: Final = 20.0
"""Seconds of a client's requests after a machine lost its cable."""
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INSTALL: Final = "apt install"
_SAID: Final = "%{errormsg}; TCP after %{time_connect} s, TLS after %{time_appconnect} s, HTTP %{http_code}"
"""curl's output for a request."""
_WEB: Final = "python3 -m http.server --bind {address} 8080 --directory /usr/share/doc"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of the page, and the heading above it."""

    heading: str
    language: str
    text: str

    def commands(self, *, installing: bool = False) -> str:
        """Return the commands to run: of a console the lines behind #, of a script all."""
        if self.language == "console":
            lines = [line[2:] for line in self.text.splitlines() if line.startswith("# ")]
        else:
            lines = self.text.splitlines()
        return "\n".join(line for line in lines if installing or not line.startswith(_INSTALL))


def blocks(text: str) -> Iterator[Block]:
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        yield from (Block(heading, *found.groups()) for found in _FENCE.finditer(body))


class Walk:
    """The machines a, b and c of the page."""

    def __init__(self, machines: Sequence[Machine], client: Host, *, installing: bool = False) -> None:
        self.machines, self.client = machines, client
        self._installing = installing
        self.lost: Machine | None = None
        page = list(blocks(PAGE.read_text(encoding="utf-8")))
        self._sections = [[each for each in page if each.heading.startswith(f"{number} ")] for number in range(1, 6)]

    def go(self) -> None:
        """Execute the page's blocks in order."""
        for step in (self._etcd, self._first, self._others, self._site, self._address):
            began = time.monotonic()
            step()
            say(f"{step.__name__.strip('_')}: {time.monotonic() - began:.1f} s")

    def _run(self, machine: Machine, script: str, **more: str) -> str:
        for line in script.splitlines()[:1] or ("",):
            say(f"{machine.name}# {line[:100]}{' …' if chr(10) in script else ''}")
        done = machine.shell(script, **more)
        if done.returncode:
            raise RuntimeError(f"{machine.name}# {script}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _etcd(self) -> None:
        install, settings, begin = self._sections[0]
        for machine in self.machines:
            if self._installing:
                machine.write("/etc/apt/apt.conf.d/yes", 'APT::Get::Assume-Yes "true";')
                self._run(machine, install.commands(installing=True))
            lines = settings.text.replace("ETCD_NAME=a", f"ETCD_NAME={machine.name}").splitlines()
            own = [
                each if "INITIAL_CLUSTER=" in each else each.replace("10.0.0.1", machine.address) for each in lines
            ]
            machine.write("/etc/default/etcd", "\n".join(own))
        starting = [threading.Thread(target=self._run, args=(each, begin.commands())) for each in self.machines]
        for each in starting:  # no server is ready before two run
            each.start()
        for each in starting:
            each.join()

    def _first(self) -> None:
        install, flags, commands = self._sections[1]
        machine = self.machines[0]
        self._run(machine, install.commands())
        machine.write("/etc/vipwire/up.env", flags.text)
        said = self._run(machine, commands.commands())
        self._join = said.strip().splitlines()[-1]
        if not self._join.startswith("vipwire join https://"):
            raise RuntimeError(f"vipwire token create says {said!r}")

    def _others(self) -> None:
        (console,) = self._sections[2]
        flags = self._sections[1][1].text
        for machine in self.machines[1:]:
            join, *rest = console.commands().splitlines()
            if not join.startswith("vipwire join"):
                raise RuntimeError(f"the page begins with {join}")
            self._run(machine, self._join)
            machine.write("/etc/vipwire/up.env", flags)
            self._run(machine, "\n".join(rest))
        last = self.machines[-1]
        until(lambda: self._nodes(last).count(" Ready ") == len(self.machines), "all machines are Ready")
        say(textwrap.indent(self._nodes(last), "    "))
        name = self._join.split()[self._join.split().index("--token") + 1].partition(".")[0]
        self._run(last, f"vipwire token list; vipwire token delete {name}")

    def _nodes(self, machine: Machine) -> str:
        return self._run(machine, "kubectl get nodes", KUBECONFIG="/var/lib/vipwire/admin.kubeconfig")

    def _site(self) -> None:
        site, ingress = self._sections[3]
        last = self.machines[-1]
        key = "openssl req -x509 -newkey rsa:2048 -nodes -keyout site.key -out site.crt -days 1"
        names = '-subj /CN=site.example.com -addext "subjectAltName=DNS:site.example.com" 2>/dev/null'
        self._run(last, f"{key} {names}")
        self._run(last, site.commands(), KUBECONFIG="/var/lib/vipwire/admin.kubeconfig")
        for machine in self.machines:
            self._run(machine, ingress.commands(installing=self._installing))

    def _address(self) -> None:
        (console,) = self._sections[4]
        expose, lease, curl = console.commands().splitlines()
        last = self.machines[-1]
        say(self._run(last, expose, KUBECONFIG="/var/lib/vipwire/admin.kubeconfig").strip())
        began = time.monotonic()
        until(lambda: not self.problem(curl), "the site answers")
        say(f"the site answers {time.monotonic() - began:.1f} s after `vipwire expose front`")
        say(self._run(last, lease, KUBECONFIG="/var/lib/vipwire/admin.kubeconfig").strip())

    def problem(self, curl: str = f"curl --resolve site.example.com:443:{ADDRESS} {SITE}") -> str:
        """Request the site as the page does, without a CA; return the error, "" for none."""
        words = [*curl.split(), "--insecure", "--silent", "--fail", "--max-time", "0.5", "--output", "/dev/null"]
        done = self.client.run(*words, "--write-out", _SAID)
        return done.stdout if done.returncode else ""

    def holder(self, lease: str, asked: Machine | None = None) -> str:
        """Return the machine that holds a Lease, by one machine's API server; "" for none."""
        where = f"kubectl get lease -n kube-system {lease} -o jsonpath='{{.spec.holderIdentity}}'"
        asked = asked or self.machines[0]
        return self._run(asked, where, KUBECONFIG="/var/lib/vipwire/admin.kubeconfig").strip().partition("_")[0]

    def owner(self) -> Machine:
        """Return the machine that has the address."""
        until(lambda: bool(self.holder(OWNER)), "the address has an owner")
        name = self.holder(OWNER)
        return next(each for each in self.machines if each.name == name)

    def units(self, *, watchdog: bool) -> None:
        """Kill and stop units' processes; systemd must restart them."""
        machine = self.machines[1]
        for unit in ("vipwire-up", "vipwire-ingress"):
            for number in ("KILL", "STOP") if watchdog and unit == "vipwire-up" else ("KILL",):
                before = machine.shell(f"systemctl show -p MainPID --value {unit}").stdout.strip()
                self._run(machine, f"kill -{number} {before}")
                seconds = until(partial(self._anew, machine, unit, before), f"{unit} is started anew")
                say(f"{machine.name}: {unit} was sent SIG{number}, and is ready again after {seconds:.1f} s")

    def _anew(self, machine: Machine, unit: str, before: str) -> bool:
        said = machine.shell(f"systemctl show -p MainPID -p ActiveState --value {unit}").stdout.split()
        return "active" in said and before not in said and "0" not in said

    def elect_owner(self) -> None:
        """Stop the API servers of the machines without the address briefly, so that the third is elected."""
        time.sleep(_SETTLED)
        owner = self.owner()
        others = [each for each in self.machines if each is not owner]
        for command in ("stop", "start"):
            for each in others:
                self._run(each, f"systemctl {command} vipwire-up")
            until(lambda: self.holder(LEADER, owner) == owner.name, f"the API server of {owner.name} is elected")
        time.sleep(_SETTLED)

    def failover(self) -> None:
        """Disconnect the machine that has the address, while a client sends requests by TLS."""
        self.lost = lost = self.owner()
        elected = self.holder(LEADER)
        say(f"pulling the plug of {lost.name}, which has the address; the API server of {elected} is elected")
        say(time.strftime("at %H:%M:%S", time.gmtime()))
        began = time.monotonic()
        lost.disconnect()
        lost.kill()
        outcomes = []
        while (asked := time.monotonic() - began) < FAILING:
            outcomes.append((asked, self.problem()))
            time.sleep(0.05)
        bad = [when for when, problem in outcomes if problem]
        good = [when for when, problem in outcomes if not problem]
        first = next((when for when in good if when > min(bad, default=0.0)), float("inf"))
        for when, problem in outcomes:
            if problem:
                say(f"    {when:.1f} s: {problem}")
        say(f"the first answer came after {first:.1f} s, none failed after {max(bad, default=0.0):.1f} s")
        say(f"{len(bad)} of {len(outcomes)} requests in {FAILING:.0f} s failed")

    def save_logs(self, folder: Path) -> None:
        """Write the journals of the remaining machines' services, with times."""
        folder.mkdir(parents=True, exist_ok=True)
        for each in self.machines:
            if each is not self.lost:
                said = each.shell("journalctl --no-pager -q -o short-precise").stdout
                (folder / f"{each.name}.log").write_text(said, encoding="utf-8")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--watchdog", action="store_true", help="wait for a watchdog, too: half a minute")
    parser.add_argument("--logs", type=Path, help="a folder for what the machines' services said")
    parser.add_argument("--leader", action="store_true", help="the server of that machine is elected, too")
    parser.add_argument("--root", type=Path, help="the root of a fresh system, with the Debian package in /root")
    given = parser.parse_args()
    with Ethernet() as ethernet:
        for number in (21, 22):
            web = ethernet.host(f"web{number}", f"10.0.0.{number}")
            web.start(*_WEB.format(address=web.address).split())
        client = ethernet.host("client", "10.0.0.100")
        root = given.root or Path("/")
        machines = [ethernet.machine(name, f"10.0.0.{number}", root) for number, name in enumerate("abc", 1)]
        walk = Walk(machines, client, installing=given.root is not None)
        try:
            walk.go()
            walk.units(watchdog=given.watchdog)
            until(lambda: not walk.problem(), "the site answers")
            if given.leader:
                walk.elect_owner()
            walk.failover()
            if given.logs:
                walk.save_logs(given.logs)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            say(f"error: {error}")
            for machine in walk.machines:
                say(machine.shell("journalctl --no-pager -q -n 40 -o cat").stdout)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
