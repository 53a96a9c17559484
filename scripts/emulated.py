"""Installs, uses and removes the release's files for arm64 on amd64, by qemu's user mode: `make release-test-arm64`.

    python -m scripts.emulated --dist dist [--roots FOLDER]

mmdebstrap makes an arm64 root of each Debian, in which the package is installed; the tree is installed in a root
without Python; an image's layers are a root by themselves. All runs as root of a user namespace: binfmt_misc there is
its own (Linux 6.7), and this machine's stays as it is. The emulator passes no netfilter: a proxy carries connections
in userspace mode, `vipwire up` runs without one, and no systemd runs.
"""

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from scripts.environment import ROOT
from scripts.interpreters import SUITES, own_architecture

QEMU: Final = Path("/usr/bin/qemu-aarch64-static")
_FORMAT: Final = (
    r":aarch64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    rf":{QEMU}:FP"
)
_INCLUDED: Final = "python3,libstdc++6,ca-certificates"
_PREPARE: Final = f"""
formats=/proc/sys/fs/binfmt_misc
mount -t binfmt_misc none $formats
[ -e $formats/aarch64 ] || printf '%s' '{_FORMAT}' >$formats/register
exec "$@"
"""
_SERVICE: Final = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.1]}]
"""
_LINKS: Final = (
    "link set lo up",
    "link add eth0 type veth peer name eth1",
    "address add 10.0.0.1/24 dev eth0",
    "address add 10.96.0.10/32 dev lo",
    "link set eth0 up",
    "link set eth1 up",
    "route add default dev eth0",
)
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_PATIENCE: Final = 120.0
_CONFIGURATION: Final = "/etc/vipwire/trial"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def user_namespace() -> Iterator[list[str]]:
    """Yield the start of a command that runs as root of a user namespace with all ids."""
    with subprocess.Popen(["unshare", "--user", "sleep", "infinity"]) as holder:
        try:
            process = Path(f"/proc/{holder.pid}")
            while (process / "ns/user").readlink() == Path("/proc/self/ns/user").readlink():
                time.sleep(0.01)
            for ids in ("uid_map", "gid_map"):
                (process / ids).write_text("0 0 65536")
            enter = ["nsenter", f"--user={process}/ns/user", "--setuid=0", "--setgid=0"]
            yield [*enter, "unshare", "--mount", "--pid", "--fork", "--mount-proc"]
        finally:
            holder.kill()


def run(root: Path, script: str, *, fails: bool = False) -> str:
    """Run a script in a root; return its output. Raise RuntimeError with it if the result is not the expected one."""
    say(f"{root.name}# {script}")
    command = ["chroot", str(root), "/bin/sh", "-ec", f"export PATH={_PATH}\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if bool(done.returncode) != fails:
        raise RuntimeError(f"{script}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


@contextmanager
def started(root: Path, *command: str) -> Iterator[None]:
    """Run vipwire in a root until the end of the block."""
    say(f"{root.name}# vipwire {' '.join(command)} &")
    with tempfile.TemporaryFile("w+") as log:
        program = ["chroot", str(root), "vipwire", *command]
        with subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT) as process:
            try:
                yield
            except RuntimeError:
                log.seek(0)
                say(log.read())
                raise
            finally:
                process.terminate()


def answers(address: str, text: str, *options: str | Path) -> None:
    """Wait until an address answers with a text."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        done = subprocess.run(["curl", "-sm5", *options, address], capture_output=True, text=True, check=False)
        if text in done.stdout:
            say(f"  {address} answers")
            return
        time.sleep(0.5)
    raise RuntimeError(f"{address} does not answer after {_PATIENCE:.0f} s: {done.stdout}")


def use(root: Path, *, up: bool) -> None:
    """Ask the commands that look, carry a connection, and serve kubectl if the API server is installed."""
    say(f"  {run(root, 'vipwire version').strip()}")
    folder = root / _CONFIGURATION[1:]
    folder.mkdir(parents=True)
    (folder / "web.yaml").write_text(_SERVICE)
    flags = (f"--manifests={_CONFIGURATION}", "--hostname-override=a", "--nodeport-addresses=primary")
    if "10.96.0.10" not in (said := run(root, f"vipwire plan {' '.join(flags)}")):
        raise RuntimeError(said)
    proxy = ("--proxy-mode=userspace", "--userspace-bind=vip", "--oom-score-adj=0", *flags)
    with started(root, "proxy", *proxy):
        answers("http://10.96.0.10/", "html")
    if up:
        with started(root, "up", "--no-proxy", "--no-dns", "--data-dir=/var/lib/vipwire"):
            answers("https://127.0.0.1:6443/livez", "ok", "--insecure")
            kubeconfig = root / "var/lib/vipwire/admin.kubeconfig"
            say(run(root, "vipwire expose web --port 80 --to 10.0.0.1:8080").strip())
            command = [str(ROOT / ".venv/bin/kubectl"), f"--kubeconfig={kubeconfig}", "get", "services"]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            say(said.strip())
            if "web" not in said:
                raise RuntimeError("kubectl does not list the Service web")
    shutil.rmtree(folder)


def try_package(root: Path, package: Path) -> None:
    shutil.copy(package, root / "root")
    say(run(root, f"DEBIAN_FRONTEND=noninteractive dpkg -i /root/{package.name}").strip())
    run(root, "dpkg -V vipwire; /usr/lib/vipwire/bin/python -c 'import grpc'")
    use(root, up=True)
    say(run(root, "dpkg -r vipwire; dpkg -P vipwire; rm -r /var/lib/vipwire; test ! -e /usr/lib/vipwire").strip())


def try_tree(root: Path, dist: Path) -> None:
    for each in (*dist.glob("vipwire-*-linux-arm64.tar.gz"), dist / "install.sh", dist / "SHA256SUMS"):
        shutil.copy(each, root / "root")
    run(root, "command -v python3", fails=True)
    say(run(root, "sh /root/install.sh").strip())
    use(root, up=True)
    say(run(root, "vipwire uninstall --purge; test ! -e /opt/vipwire; test ! -e /etc/vipwire").strip())


def unpack(archive: Path, to: Path) -> None:
    """Lay out an image's layers, one over the other."""
    to.mkdir()
    with tarfile.open(archive) as file:

        def read(digest: str) -> bytes:
            member = file.extractfile(f"blobs/{digest.replace(':', '/')}")
            return member.read() if member else b""

        index = file.extractfile("index.json")
        (listed,) = json.loads(index.read() if index else b"")["manifests"]
        command = ["tar", "-xz", "--keep-directory-symlink", "-C", str(to)]
        for layer in json.loads(read(listed["digest"]))["layers"]:
            subprocess.run(command, input=read(layer["digest"]), check=True)


def trial(roots: Path, dist: Path) -> None:
    """Try each file; this process has a network of its own."""
    for each in _LINKS:
        subprocess.run(["ip", *each.split()], check=True)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(ROOT / "docs"))
    server = ThreadingHTTPServer(("10.0.0.1", 8080), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for archive in sorted(dist.glob("*_arm64.oci.tar")):
        unpack(archive, roots / archive.name.partition("_")[0])
    for root in sorted(roots.iterdir()):
        for name, kind in (("proc", "proc"), ("dev", "")):
            mount = ["-t", kind, kind] if kind else ["--rbind", f"/{name}"]
            subprocess.run(["mount", *mount, str(root / name)], check=True)
        for suite in SUITES.values():
            if root.name == suite.name:
                (package,) = dist.glob(f"vipwire_*+deb{suite.number}_arm64.deb")
                try_package(root, package)
        if root.name == "plain":
            try_tree(root, dist)
        if root.name.startswith("vipwire"):
            use(root, up=root.name == "vipwire-all")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.emulated", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--trial", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trial:
        trial(given.trial, given.dist)
        return
    if own_architecture() != "amd64" or not QEMU.exists():
        raise SystemExit(f"needs amd64 with {QEMU}: apt-get install qemu-user-static")
    with tempfile.TemporaryDirectory(prefix="vipwire-emulated-") as name, user_namespace() as within:
        prepared = [*within, "sh", "-ec", _PREPARE, "sh"]
        for root, more in (*((each, [f"--include={_INCLUDED}"]) for each in SUITES), ("plain", [])):
            say(f"making the arm64 root {root}")
            options = ["--quiet", "--mode=root", "--architectures=arm64", "--variant=minbase", *more]
            suite = "bookworm" if root == "plain" else root
            subprocess.run([*prepared, "mmdebstrap", *options, suite, f"{name}/{root}"], check=True)
        command = [sys.executable, "-m", "scripts.emulated", f"--dist={given.dist.resolve()}", f"--trial={name}"]
        done = subprocess.run([*prepared, "unshare", "--net", *command], cwd=ROOT, check=False)
        if done.returncode:
            raise SystemExit("arm64 is not as it should be")
        say("as it should be on arm64, emulated: packages, tree and images")


if __name__ == "__main__":
    main()
