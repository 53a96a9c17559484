"""Build Debian packages: `python -m scripts.debian --wheel dist/vipwire-0.2.0-py3-none-any.whl --to dist`.

A package has an environment of its own in /usr/lib/vipwire, with the libraries of requirements/etcd.lock: Debian has
older ones, or none. The interpreter is the system's, so a package is for one release of Debian and one architecture.
"""

import argparse
import email.utils
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts import materials
from scripts.environment import ROOT, Environment, commit_time, completion, pack, settle, write_manual
from scripts.interpreters import MACHINES, SUITES, SYSTEM, Suite, interpreter, own_architecture, run

HOME: Final = Path("/usr/lib/vipwire")
COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/vipwire",
    "zsh": "usr/share/zsh/vendor-completions/_vipwire",
    "fish": "usr/share/fish/vendor_completions.d/vipwire.fish",
}
CONTROL: Final = """\
Package: vipwire
Version: {version}
Architecture: {architecture}
Maintainer: The vipwire authors <vipwire@localhost>
Installed-Size: {size}
Depends: python3 (>= 3.{minor}~), python3 (<< 3.{next_minor}~), libc6, libgcc-s1, libstdc++6
Recommends: nftables
Suggests: bird2, conntrack, haproxy, ipset, iptables, ipvsadm, kubernetes-client
Section: net
Priority: optional
Description: Kubernetes service proxy
 vipwire makes the kernel turn connections to a Service's virtual IP into
 connections to one of its Pods: by nftables, iptables, IPVS, eBPF or from
 userspace. It takes kube-proxy's place in a cluster, and balances addresses
 from manifests, or with an API server of its own, on machines without one.
 .
 The service is not started when the package is installed: put manifests into
 /etc/vipwire/services and say `systemctl enable --now vipwire`.
"""


@dataclass(frozen=True, slots=True)
class Package:
    """The package of one version for one release of Debian and one architecture."""

    version: str
    suite: Suite
    architecture: str

    @property
    def full_version(self) -> str:
        """A newer release's package is the newer one: an upgrade of Debian takes it."""
        return f"{self.version}+deb{self.suite.number}"

    @property
    def file_name(self) -> str:
        return f"vipwire_{self.full_version}_{self.architecture}.deb"

    def describe(self, stage: Path) -> None:
        """Write the package's control files."""
        about = stage / "DEBIAN"
        about.mkdir()
        for name in ("postinst", "prerm", "postrm"):
            shutil.copy(ROOT / "deploy/debian" / name, about / name)
        (about / "conffiles").write_text("/etc/vipwire/vipwire.env\n", encoding="utf-8")
        control = CONTROL.format(
            version=self.full_version,
            architecture=self.architecture,
            size=sum(path.lstat().st_size for path in stage.rglob("*") if path.is_file()) // 1024,
            minor=self.suite.minor,
            next_minor=self.suite.minor + 1,
        )
        (about / "control").write_text(control, encoding="utf-8")

    def add_files(self, stage: Path) -> None:
        """Write files outside of the environment: units, manual pages, completion, configuration."""
        (stage / "usr/bin").mkdir(parents=True)
        (stage / "usr/bin/vipwire").symlink_to(HOME / "bin/vipwire")
        units, etc = stage / "usr/lib/systemd/system", stage / "etc/vipwire"
        units.mkdir(parents=True)
        (etc / "services").mkdir(parents=True)
        unit = (ROOT / "deploy/systemd/vipwire.service").read_text(encoding="utf-8")
        lines = [line for line in unit.splitlines(keepends=True) if not line.startswith("#")]
        text = "".join(lines).replace("/opt/vipwire/bin", "/usr/bin")
        (units / "vipwire.service").write_text(text, encoding="utf-8")
        shutil.copyfile(ROOT / "deploy/systemd/vipwire.env", etc / "vipwire.env")
        write_manual(stage / "usr/share/man/man8")
        for shell, name in COMPLETIONS.items():
            (stage / name).parent.mkdir(parents=True)
            (stage / name).write_text(completion(shell), encoding="utf-8")
        about = stage / "usr/share/doc/vipwire"
        about.mkdir(parents=True)
        shutil.copyfile(ROOT / "LICENSE", about / "copyright")
        shutil.copyfile(ROOT / "README.md", about / "README.md")
        shutil.copyfile(ROOT / "CHANGELOG.md", about / "changelog")
        pack(about / "changelog")
        dated = email.utils.formatdate(commit_time())
        entry = f"vipwire ({self.full_version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
        (about / "changelog.Debian").write_text(f"{entry} -- The vipwire authors <vipwire@localhost>  {dated}\n")
        pack(about / "changelog.Debian")


def build(wheel: Path, to: Path, suite: Suite, architecture: str, compression: str = "xz") -> Path:
    """Build the package of a wheel into a folder; return its path. `compression` is one of dpkg-deb's (-Z)."""
    commit_time()
    package = Package(wheel.name.split("-")[1], suite, architecture)
    with tempfile.TemporaryDirectory(prefix="vipwire-deb-") as name:
        stage = Path(name) / "stage"
        stage.mkdir()
        environment = Environment(HOME, SYSTEM, suite, architecture)
        libraries = environment.lay_out(stage, wheel, interpreter(suite, Path(name)))
        materials.write(stage / HOME.relative_to("/") / "share" / materials.NAME, "vipwire", libraries)
        package.add_files(stage)
        package.describe(stage)
        settle(stage)
        path = to / package.file_name
        to.mkdir(parents=True, exist_ok=True)
        run("dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", stage, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.debian", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    parser.add_argument("--suite", choices=list(SUITES), action="append", help="by default both")
    parser.add_argument("--architecture", choices=list(MACHINES), action="append", help="by default this machine's")
    given = parser.parse_args()
    for suite in given.suite or SUITES:
        for architecture in given.architecture or [own_architecture()]:
            sys.stdout.write(f"{build(given.wheel, given.to, SUITES[suite], architecture)}\n")


if __name__ == "__main__":
    main()
