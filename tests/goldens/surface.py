"""Collects the public names from outside: flags, JSON keys, metrics, kernel objects, files.

`python -m tests.goldens.surface NAME` prints one list; `python -m tests.goldens` writes all golden files. Each list
comes from the installed command in new namespaces. Nothing imports the package, so that modules can move.
"""

import contextlib
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OBJECTS = HERE / "objects.yaml"
PATIENCE = 60
"""Seconds until a program must be ready; machines are shared."""
PROXY_FLAGS = (
    f"--manifests={OBJECTS}",
    "--hostname-override=node-1",
    "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
)
RANGES = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"
COMMANDS = {
    "status": ("-o", "json"),
    "plan": ("-o", "json"),
    "diff": ("-o", "json"),
    "explain": ("--from", "10.244.1.11", "10.96.0.10:80", "-o", "json"),
    "check": ("--proxy-mode=nftables", "-o", "json"),
    "top": ("-c", "1", "--interval", "0.5", "-o", "json"),
    "drain": ("--list", "-o", "json"),
}
WITHOUT_OBJECTS = {"check", "drain"}


def vipwire() -> list[str]:
    return [sys.executable, "-m", "vipwire"]


def run(*command: str, fails: bool = False) -> str:
    """Return a command's output; raise with its errors if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 2, check=False)
    assert fails or done.returncode == 0, f"{command}: {done.returncode} {done.stderr}{done.stdout}"
    return done.stdout


def build_namespace() -> None:
    """Give this process's namespace addresses, routes and an empty /run."""
    assert os.getppid() == 1 or os.getpid() < 10, "this runs in namespaces of its own alone: python -m tests.goldens"
    run("mount", "-t", "tmpfs", "none", "/run")
    run("ip", "link", "set", "lo", "up")
    for address in ("192.168.0.1/24", "10.244.1.1/24"):
        run("ip", "addr", "add", address, "dev", "lo")
    run("ip", "addr", "add", "2001:db8::1/64", "dev", "lo", "nodad")
    run("ip", "route", "add", "default", "dev", "lo")
    run("ip", "-6", "route", "add", "default", "dev", "lo")


def wait_for(url: str) -> bytes:
    """Return a page once it answers 200."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
                return answer.read()  # type: ignore[no-any-return]
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def running(*command: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([*vipwire(), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


@contextlib.contextmanager
def proxy(mode: str) -> Iterator[None]:
    """Run `vipwire proxy` with the golden objects, synced."""
    with running("proxy", *PROXY_FLAGS, f"--proxy-mode={mode}"):
        wait_for("http://127.0.0.1:10256/readyz")
        await_record()
        yield


def await_record() -> None:
    """Wait until the proxy's record in /run shows the first sync of both families."""
    end = time.monotonic() + PATIENCE
    while not all(
        isinstance(json.loads(path.read_text(encoding="utf-8"))["synced"].get(family), float)
        for path in Path("/run/vipwire").glob("proxy-*.json")
        for family in ("IPv4", "IPv6")
    ):
        assert time.monotonic() < end
        time.sleep(0.1)


def read_help(command: tuple[str, ...]) -> str:
    """Run `vipwire COMMAND --help` in this process: forty new ones take 12 s of CPU."""
    sys.argv = ["vipwire", *command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as written, contextlib.suppress(SystemExit):
        runpy.run_module("vipwire", run_name="__main__")
    return written.getvalue()


def walk_help(command: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every command with its flags, their kinds and defaults, from --help."""
    text = read_help(command)
    name = " ".join(("vipwire", *command))
    yield name
    sections = re.split(r"^(?=[A-Z].*:$)", text, flags=re.MULTILINE)
    for section in sections[1:]:
        for line in section.splitlines()[1:]:
            if flag := re.match(r"^  (-.+?)(?:  |$)", line):
                yield f"{name} {flag[1]}"
            elif command[:1] != ("proxy",) and (word := re.match(r"^  ([a-z][a-z-]*)(?:  |$)", line)):
                yield from walk_help((*command, word[1]))


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    """Yield path and type of every field of a JSON document; items of a list count as one."""
    match value:
        case dict():
            for key, below in value.items():
                yield from keys_of(below, f"{path}.{key}" if path else str(key))
        case list():
            yield f"{path}[]"
            for below in value:
                yield from keys_of(below, f"{path}[]")
        case None:
            pass
        case _:
            yield f"{path} {type(value).__name__}"


def command_keys() -> Iterator[str]:
    """Yield JSON keys of the read-only commands, beside a running proxy."""
    build_namespace()
    with proxy("nftables"):
        for command, flags in COMMANDS.items():
            objects = () if command in WITHOUT_OBJECTS else PROXY_FLAGS[:1]
            text = run(*vipwire(), command, *flags, *objects, fails=True)
            documents = [json.loads(line) for line in text.splitlines()] if command == "top" else [json.loads(text)]
            for key in sorted({key for each in documents for key in keys_of(each)}):
                yield f"{command} {key}"


def metric_names(text: str) -> Iterator[str]:
    """Yield type, name and label names of every metric of a page in Prometheus' text format."""
    kinds = {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            kinds[name] = kind
            yield f"{kind} {name}"
        elif not line.startswith("#") and (found := re.match(r"([a-z_0-9]+)\{(.*)\}", line)):
            labels = re.findall(r'([a-z_A-Z]+)="', found[2])
            yield f"labels {found[1]} {','.join(labels)}"


def metrics() -> Iterator[str]:
    """Yield metrics of the proxy in each mode that every kernel supports, and of DNS."""
    build_namespace()
    for mode in ("nftables", "iptables", "userspace"):
        with proxy(mode):
            page = wait_for("http://127.0.0.1:10249/metrics").decode()
        yield from (f"{mode} {each}" for each in sorted(set(metric_names(page))))
        run(*vipwire(), "cleanup", fails=True)
    with running(
        "dns",
        f"--manifests={OBJECTS}",
        "--bind-address=127.0.0.1",
        "--port=5300",
        "--resolv-conf=",
        "--http-address=127.0.0.1:9153",
    ):
        wait_for("http://127.0.0.1:9153/ready")
        page = wait_for("http://127.0.0.1:9153/metrics").decode()
        yield from (f"dns {each}" for each in sorted(set(metric_names(page))))


def gateway() -> Iterator[str]:
    """Yield metrics of the gateway that serves Ingresses too, and its folder's files with their modes."""
    build_namespace()
    binds = ("--http=127.0.0.1:8000", "--https=127.0.0.1:8443", "--metrics-bind-address=127.0.0.1:9100")
    with running("gateway", "--ingress", f"--manifests={OBJECTS}", "--run-dir=/run/gateway", *binds):
        wait_for("http://127.0.0.1:9100/readyz")
        page = wait_for("http://127.0.0.1:9100/metrics").decode()
        yield from sorted(set(metric_names(page)))
        yield from files_below(Path("/run/gateway"))


def nftables_kernel() -> Iterator[str]:
    """Yield the table of nftables mode without counters, handles and usage."""
    build_namespace()
    with proxy("nftables"):
        yield from clean(run("nft", "-s", "list", "ruleset"))


def ebpf_kernel() -> Iterator[str]:
    """Yield the table of ebpf mode and the names in bpffs."""
    build_namespace()
    run("mount", "-t", "bpf", "none", "/sys/fs/bpf")
    with proxy("ebpf"):
        yield from clean(run("nft", "-s", "list", "ruleset"))
        for path in sorted(Path("/sys/fs/bpf").rglob("*")):
            name = re.sub(r"/vipwire/[0-9a-f]+", "/vipwire/NAMESPACE", str(path))
            yield re.sub(r"(?<=/netns/)\d+", "INODE", name)


def clean(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield re.sub(r" expires \S+|counter packets \d+ bytes \d+", "", line).rstrip()


def iptables_kernel() -> Iterator[str]:
    yield from _xtables("iptables")


def userspace_kernel() -> Iterator[str]:
    """Yield chains and rules of userspace mode, and the relay's command line."""
    yield from _xtables("userspace")


def _xtables(mode: str) -> Iterator[str]:
    build_namespace()
    with proxy(mode):
        for save in ("iptables-save", "ip6tables-save"):
            for line in run(save).splitlines():
                if not line.startswith("#"):
                    without = re.sub(r"\[\d+:\d+\]", "[0:0]", line)
                    # The relay's ports differ from run to run.
                    yield re.sub(r"(--to-ports |:)(3[2-9]|[45]\d|6[0-5])\d{3}\b", r"\1PORT", without)
        if mode == "userspace":
            for path in sorted(Path("/proc").glob("[0-9]*/cmdline")):
                words = path.read_bytes().decode().split("\0")
                if "relay" in " ".join(words[2:4]):
                    yield " ".join(re.sub(r"^\d+$|/[^ ]*/python[0-9.]*$", "VALUE", word) for word in words).strip()


def ipvs_kernel() -> Iterator[str]:
    """Yield virtual servers, sets, rules and the device of ipvs mode, under a kernel with IPVS."""
    build_namespace()
    with proxy("ipvs"):
        yield from sorted(run("ipvsadm", "-Sn").splitlines())
        yield from sorted(re.sub(r" initval \S+", "", each) for each in run("ipset", "save").splitlines())
        yield from sorted(run("ip", "-brief", "address", "show", "dev", "kube-ipvs0").split())
        for save in ("iptables-legacy-save", "ip6tables-legacy-save"):
            yield from (re.sub(r"\[\d+:\d+\]", "[0:0]", each) for each in run(save).splitlines() if each[:1] != "#")


def state_files() -> Iterator[str]:
    """Yield a running proxy's files in /run, with their modes and JSON keys."""
    build_namespace()
    with proxy("nftables"):
        yield from files_below(Path("/run/vipwire"))


def files_below(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"-[0-9a-f]{6,}-\d+\.", "-NAMESPACE.", str(path.relative_to(folder)))
        name = re.sub(r"(?<=\.)\d+$", "INODE", name)
        yield f"{name} {path.stat().st_mode & 0o777:o}"
        if path.is_file() and path.stat().st_size:
            with contextlib.suppress(ValueError, UnicodeDecodeError):
                content = json.loads(path.read_text(encoding="utf-8"))
                yield from (f"{name} {key}" for key in sorted(set(keys_of(content))))


def annotations() -> Iterator[str]:
    """Yield vipwire's annotations, labels and group names in the source."""
    found: set[str] = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"\b(?:[a-z0-9-]+\.)*(?:vipwire|kube-router)\.io/[a-zA-Z0-9./_-]+[a-zA-Z0-9]", text))
        found |= set(
            re.findall(
                r"\b(?:haproxy-ingress|haproxy|nginx\.ingress|service)\.(?:github\.io|kubernetes\.io|beta\.kubernetes\.io)/[a-zA-Z0-9./_-]+[a-zA-Z0-9]",
                text,
            )
        )
    yield from sorted(found)


def api_answers() -> Iterator[str]:
    """Yield resources, verbs and schemas of `vipwire up`, its answers to objects, and its data directory's files."""
    build_namespace()
    folder = Path("/run/up")
    with running("up", f"--data-dir={folder}", "--no-proxy", "--no-dns", "--node-name=server", RANGES):
        config = folder / "admin.kubeconfig"
        end = time.monotonic() + PATIENCE
        while not (config.exists() and ask(config, "/readyz")):
            assert time.monotonic() < end
            time.sleep(0.2)
        yield from _discovery(config)
        run("kubectl", f"--kubeconfig={config}", "apply", "--server-side", "-f", str(OBJECTS))
        for kind in ("services", "endpointslices", "nodes", "events", "leases"):
            for item in json.loads(run("kubectl", f"--kubeconfig={config}", "get", kind, "-A", "-o", "json"))[
                "items"
            ]:
                item["metadata"].pop("managedFields", None)
                yield from (f"object {kind} {key}" for key in sorted(set(keys_of(item))))
        for line in sorted(set(files_below(folder))):
            yield f"file {line}"


def ask(config: Path, path: str) -> str:
    return run("kubectl", f"--kubeconfig={config}", "get", "--raw", path, fails=True)


def _discovery(config: Path) -> Iterator[str]:
    yield from sorted(json.loads(ask(config, "/"))["paths"]) if ask(config, "/").startswith("{") else ()
    groups = ["/api/v1"]
    groups += [
        f"/apis/{v['groupVersion']}" for g in json.loads(ask(config, "/apis"))["groups"] for v in g["versions"]
    ]
    for group in groups:
        for each in json.loads(ask(config, group))["resources"]:
            names = " ".join(
                (each["name"], each["kind"], ",".join(each.get("shortNames", ())), ",".join(each["verbs"]))
            )
            yield f"{group} {names}"
        document = json.loads(ask(config, f"/openapi/v3{group.replace('/api/', '/api/', 1)}"))
        yield from (f"{group} {each}" for each in sorted(set(_schema_lines(document))))


def _schema_lines(document: Any) -> Iterator[str]:
    for name, schema in document["components"]["schemas"].items():
        for field, below in schema.get("properties", {}).items():
            kind = (
                below.get("type")
                or below.get("$ref")
                or ",".join(each.get("$ref", "") for each in below.get("allOf", ()))
            )
            item = below.get("items", below.get("additionalProperties", {}))
            of = item.get("type") or item.get("$ref", "") if isinstance(item, dict) else item
            rest = " ".join(f"{key}={below[key]}" for key in ("default", "enum", "format") if key in below)
            needed = " required" if field in schema.get("required", ()) else ""
            yield f"{name}.{field} {kind} {of} {rest}{needed}".replace("#/components/schemas/", "").rstrip()


def _flags() -> Iterator[str]:
    yield from walk_help()


LISTS: dict[str, Callable[[], Iterable[str]]] = {
    "flags": _flags,
    "command-keys": command_keys,
    "metrics": metrics,
    "gateway": gateway,
    "kernel-nftables": nftables_kernel,
    "kernel-ebpf": ebpf_kernel,
    "kernel-iptables": iptables_kernel,
    "kernel-userspace": userspace_kernel,
    "kernel-ipvs": ipvs_kernel,
    "state-files": state_files,
    "annotations": annotations,
    "api-answers": api_answers,
}
GUEST = {"kernel-ipvs"}
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def collect(name: str) -> str:
    """Make one list in new namespaces."""
    place = (sys.executable, "-m", "vipwire_lab.guest_kernel", "--") if name in GUEST else NAMESPACES
    command = (*place, sys.executable, "-m", "tests.goldens.surface", name)
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def golden(name: str) -> Path:
    return HERE / f"{name}.txt"


if __name__ == "__main__":
    for line in LISTS[sys.argv[1]]():
        sys.stdout.write(f"{line}\n")
