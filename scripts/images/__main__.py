"""Builds the images of deploy/ and runs their Pods: `python -m scripts.images`, as root, from the checkout's root.

podman's storage is below one folder; the Pods run in new network namespaces, one after the other. Not part of `make
test`: it takes minutes, an image registry (or `--debian-base`) and a package index.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from scripts.images.engine import TAG, Engine
from scripts.images.trials import DEPLOY, TRIALS

_BASE = "docker.io/library/python:3.11-slim"
_BUILDS = {
    TAG: ("deploy/Containerfile", "--target=nftables"),
    f"{TAG}-iptables": ("deploy/Containerfile", "--target=iptables"),
    f"{TAG}-ipvs": ("deploy/Containerfile", "--target=ipvs"),
    f"{TAG}-ingress": ("deploy/ingress/Containerfile",),
}
_PROGRAMS = {
    "podman": "podman",
    "crun": "crun",
    "catatonit": "catatonit",
    "kubectl": "kubernetes-client",
    "ip": "iproute2",
    "unshare": "util-linux",
}
# The packages of the slim image that vipwire needs.
_DEBIAN = "ca-certificates,netbase,tzdata,python3,python3-venv"


def ready(*, debian: bool) -> None:
    """Raise an error that names missing programs."""
    if os.geteuid():
        raise click.ClickException("run it as root: containers of the host's network are root's")
    wanted = _PROGRAMS | ({"debootstrap": "debootstrap"} if debian else {})
    missing = [package for program, package in wanted.items() if shutil.which(program) is None]
    if missing:
        raise click.ClickException(f"apt install --no-install-recommends {' '.join(missing)}")


def stand_in(engine: Engine) -> None:
    """Make a base image of Debian's packages, with Debian's Python where the real image has its own."""
    if not subprocess.run(engine.command("image", "exists", _BASE), check=False).returncode:
        return
    root = engine.folder / "debian"
    command = ["debootstrap", "--variant=minbase", f"--include={_DEBIAN}", "bookworm", str(root)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    # As Debian's images do: discard downloads and caches of apt.
    (root / "etc/apt/apt.conf.d/docker-clean").write_text(
        'APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };\n'
        'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };\n'
        'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
    )
    for each in ("var/lib/apt/lists", "var/cache/apt", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / each)
        (root / each).mkdir()
    for each in ("etc/resolv.conf", "etc/hostname"):
        (root / each).unlink(missing_ok=True)
    packed = engine.folder / "debian.tar"
    subprocess.run(["tar", "-C", root, "-cf", packed, "."], check=True)
    engine.run("import", packed, _BASE)
    shutil.rmtree(root)


def build(engine: Engine, flags: tuple[str, ...], *, debian: bool) -> None:
    pull = "never" if debian else "missing"
    for tag, (file, *target) in _BUILDS.items():
        # --pull only for the first: the second starts from the first one's image, which no registry has.
        command = ["build", f"--pull={pull}", "--isolation=chroot", "--network=host", *flags, *target]
        arguments = engine.command(*command, f"--file={file}", f"--tag={tag}", str(DEPLOY.parent))
        subprocess.run(arguments, check=True, stdout=sys.stderr)
    for tag in (_BASE, *_BUILDS):
        size = int(engine.run("image", "inspect", "--format={{.Size}}", tag))
        click.echo(f"{tag:45} {size / 1e6:6.0f} MB")


def run(engine: Engine, pods: tuple[str, ...]) -> Iterator[str]:
    """Try the Pods; yield those that failed."""
    for name in pods:
        click.echo(f"{name}:")
        command = [
            "unshare",
            "--mount",
            "--net",
            sys.executable,
            "-m",
            "scripts.images.pod",
            name,
            str(engine.folder),
        ]
        if subprocess.run(command, check=False, cwd=DEPLOY.parent).returncode:
            yield name


@click.command()
@click.argument("pods", nargs=-1, type=click.Choice([*TRIALS]))
@click.option("--debian-base", is_flag=True, help=f"Make what stands in for {_BASE} out of Debian's packages.")
@click.option("--build-flag", multiple=True, help="A flag for `podman build`, such as --env=PIP_INDEX_URL=…")
@click.option("--folder", type=click.Path(path_type=Path), help="Where storage and logs are kept; else they go.")
def main(pods: tuple[str, ...], build_flag: tuple[str, ...], folder: Path | None, *, debian_base: bool) -> None:
    """Build the images and run PODS from them, all but ipvs without any."""
    ready(debian=debian_base)
    with tempfile.TemporaryDirectory(prefix="vipwire-images-") as temporary:
        engine = Engine((folder or Path(temporary)).resolve(), ("unshare", "--mount"))
        engine.folder.mkdir(parents=True, exist_ok=True)
        if debian_base:
            stand_in(engine)
        build(engine, build_flag, debian=debian_base)
        # ipvs needs a kernel that supports it.
        failed = [*run(engine, pods or tuple(name for name in TRIALS if name != "ipvs"))]
    if failed:
        raise click.ClickException(f"not as it should be: {', '.join(failed)}")


if __name__ == "__main__":
    main()
