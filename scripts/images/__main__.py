"""Runs the Pods of deploy/ from the images: `python -m scripts.images`, as root, from the checkout's root.

podman loads the archives of `scripts.images.build`; its storage is below one folder. The Pods run in new network
namespaces, one after the other.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from scripts.images.build import architecture_here, of_checkout
from scripts.images.engine import Engine
from scripts.images.trials import DEPLOY, TRIALS

_PROGRAMS = {
    "podman": "podman",
    "crun": "crun",
    "catatonit": "catatonit",
    "kubectl": "kubernetes-client",
    "ip": "iproute2",
    "unshare": "util-linux",
}


def ready() -> None:
    """Raise an error that names missing programs."""
    if os.geteuid():
        raise click.ClickException("run it as root: containers of the host's network are root's")
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        raise click.ClickException(f"apt install --no-install-recommends {' '.join(missing)}")


def load(engine: Engine, archives: list[Path]) -> None:
    for archive in archives:
        name = engine.run("load", "--quiet", f"--input={archive}").strip().rpartition(" ")[2]
        size = int(engine.run("image", "inspect", "--format={{.Size}}", name))
        click.echo(f"{name}: {archive.stat().st_size / 1e6:.0f} MB, unpacked {size / 1e6:.0f} MB")


def run(engine: Engine, pods: tuple[str, ...]) -> Iterator[str]:
    """Try the Pods; yield those that failed."""
    for name in pods:
        click.echo(f"{name}:")
        within = ["unshare", "--mount", "--net"]
        command = [*within, sys.executable, "-m", "scripts.images.pod", name, str(engine.folder)]
        if subprocess.run(command, check=False, cwd=DEPLOY.parent).returncode:
            yield name


@click.command()
@click.argument("pods", nargs=-1, type=click.Choice([*TRIALS]))
@click.option("--images", type=click.Path(path_type=Path), help="A folder with archives; else they are built.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where storage and logs are kept; else they go.")
def main(pods: tuple[str, ...], images: Path | None, folder: Path | None) -> None:
    """Run PODS from the images, all but ipvs without any."""
    ready()
    with tempfile.TemporaryDirectory(prefix="vipwire-images-") as temporary:
        engine = Engine((folder or Path(temporary)).resolve(), ("unshare", "--mount"))
        engine.folder.mkdir(parents=True, exist_ok=True)
        here = architecture_here()
        made = images or engine.folder
        if not images:
            of_checkout(made).build(made, [here])
        load(engine, sorted(made.glob(f"*_{here}.oci.tar")))
        # ipvs needs a kernel that supports it.
        failed = [*run(engine, pods or tuple(name for name in TRIALS if name != "ipvs"))]
    if failed:
        raise click.ClickException(f"not as it should be: {', '.join(failed)}")


if __name__ == "__main__":
    main()
