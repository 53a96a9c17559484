"""Runs one Pod of deploy/ with podman as the kubelet would, and checks its work.

`python -m scripts.images` calls this for each Pod in a new network and mount namespace, which end with the last
process. The API server is `vipwire up` in a container of the same image; two web servers, which answer with their
address, replace Pods.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from scripts.images import podspec, world
from scripts.images.build import ALL
from scripts.images.engine import Engine, Running, started
from scripts.images.trials import DEPLOY, TRIALS, Trial, page, pod_of, rendered

_PATIENCE = 60.0
_SYS_RESOURCE = 1 << 24


def until(what: str, condition: Callable[[], object]) -> float:
    """Wait until `condition` holds; return the seconds, or raise an error with `what`."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() > start + _PATIENCE:
            raise click.ClickException(f"waited {_PATIENCE:.0f} s in vain: {what}")
        time.sleep(0.05)
    return time.monotonic() - start


def said(*words: object) -> None:
    click.echo(f"  {' '.join(map(str, words))}")


def withheld() -> frozenset[str]:
    """Return the capabilities that this machine lacks and vipwire can do without."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    bounding = int(status.partition("CapBnd:")[2].split()[0], 16)
    return frozenset() if bounding & _SYS_RESOURCE else frozenset({"SYS_RESOURCE"})


@dataclass(frozen=True, slots=True)
class Look:
    """One Pod and its trial."""

    engine: Engine
    trial: Trial
    pod: podspec.Object
    place: podspec.PodHost
    kubeconfig: Path

    def through(self) -> None:
        """Start the Pod's containers, check them, and end them."""
        first, (container,) = podspec.containers(self.pod)
        for each in first:
            self.ended(self.pod, each)
        arguments = podspec.run_arguments(self.pod, container, self.place)
        with started(self.engine, container["name"], *arguments) as running:
            try:
                self.serves(running, container)
                self.recovers(running)
                self.ends(running)
            except (click.ClickException, subprocess.CalledProcessError):
                click.echo(running.log.read_text(encoding="utf-8", errors="replace"))
                raise
        answers = self.trial.ask() == world.SECOND
        said("afterwards it", "still answers" if answers else "does not answer")
        if answers != self.trial.stays:
            raise click.ClickException("that is not as it should be")
        if answers:
            self.cleaned()

    def cleaned(self) -> None:
        """Run deploy/cleanup as a node's only Pod, and check that the Service answers no more."""
        pod = pod_of(rendered(DEPLOY / "cleanup"))
        self.ended(pod, podspec.containers(pod)[0][0])
        if self.trial.ask() == world.SECOND:
            raise click.ClickException("it still answers after the cleanup")
        said("after the cleanup it does not answer")

    def ended(self, pod: podspec.Object, container: podspec.Object) -> None:
        command = self.engine.container(container["name"], *podspec.run_arguments(pod, container, self.place))
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        said(f"init container {container['name']}: status {done.returncode}")
        if done.returncode:
            raise click.ClickException(done.stdout)

    def serves(self, running: Running, container: podspec.Object) -> None:
        """Request the probes' pages, and the Service before and after a change."""
        for kind in ("readinessProbe", "livenessProbe"):
            self.approved(kind, podspec.probe(container, kind))
        self.answered_by(world.FIRST)
        world.apply(self.kubeconfig, *world.slices_of(world.SECOND))
        self.answered_by(world.SECOND)
        if container["command"] == ["vipwire", "proxy"]:
            click.echo(self.engine.run("exec", running.name, "vipwire", "status"))

    def approved(self, kind: str, probe: podspec.Probe) -> None:
        url = f"http://{probe.host or world.ADDRESS}:{probe.port}{probe.path}"
        seconds = until(url, lambda: page(url)[0] == 200)
        said(f"{kind} {probe.path}: 200 after {seconds:.1f} s")

    def answered_by(self, address: str) -> None:
        until(f"answers of {address}", lambda: self.trial.ask() == address)
        said("answered by", address)

    def recovers(self, running: Running) -> None:
        """Kill the trial's processes, and check that they restart and leave no zombie."""
        if self.trial.killed:
            victims = [each.number for each in running.processes() if self.trial.killed in each.command]
            os.kill(min(victims), signal.SIGKILL)
            until("another process", lambda: self._others(running, victims))
            self.answered_by(world.SECOND)
            said(f"process {min(victims)} was killed, and another one started")
        until("no zombies", lambda: "Z" not in {each.state for each in running.processes()})

    def _others(self, running: Running, victims: list[int]) -> bool:
        return any(self.trial.killed in each.command and each.number not in victims for each in running.processes())

    def ends(self, running: Running) -> None:
        """End it as the kubelet does; check that it ends in time with status 0."""
        patience = self.pod.get("terminationGracePeriodSeconds", 30)
        status, seconds = running.stop(patience)
        said(f"SIGTERM: status {status} after {seconds:.1f} s of {patience}")
        if status:
            raise click.ClickException("it did not end by itself")


@click.command()
@click.argument("name", type=click.Choice([*TRIALS]))
@click.argument("folder", type=click.Path(path_type=Path))
def main(name: str, folder: Path) -> None:
    """Try a Pod with the storage in FOLDER. To be called in namespaces of its own."""
    trial, engine, here = TRIALS[name], Engine(folder), folder / name
    cluster = here / "cluster"
    shutil.rmtree(here, ignore_errors=True)
    cluster.mkdir(parents=True)
    world.show_one_cgroup_tree()
    world.mount_bpffs()
    world.make_network()
    objects = rendered(trial.folder)
    pod = pod_of(objects)
    up = ("up", "--no-proxy", "--no-dns", "--data-dir=/data", f"--node-name={world.NODE}")
    kubeconfig = cluster / "admin.kubeconfig"
    with (
        world.web_servers(here),
        started(engine, "api", "--network=host", "--user=0", f"--volume={cluster}:/data", ALL, *up),
    ):
        until("the API server", lambda: world.ready(kubeconfig))
        classes = [each for each in objects if each["kind"] in {"IngressClass", "GatewayClass"}]
        world.apply(kubeconfig, *world.objects(), *classes, *world.slices_of(world.FIRST))
        for setting, value in podspec.sysctls(pod).items():
            Path("/proc/sys", setting.replace(".", "/")).write_text(value)
        world.fill_volumes(here, pod, trial.mode, cluster, trial.user)
        place = podspec.PodHost(here, world.FIELDS, world.ENVIRON, withheld())
        for right in place.withheld:
            said(f"{right} is not this machine's to give, and left out")
        Look(engine, trial, pod, place, kubeconfig).through()


if __name__ == "__main__":
    main()
