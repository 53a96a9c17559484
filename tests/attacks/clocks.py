"""A wall clock that jumps (libfaketime, Debian's package faketime) while the monotonic clock runs on."""

from pathlib import Path

CLIENT = """
import base64, json, pathlib, ssl, sys, tempfile, urllib.request, yaml
config, token, method, path, body = sys.argv[1:]
made = yaml.safe_load(pathlib.Path(config).read_text())
cluster, user = made["clusters"][0]["cluster"], made["users"][0]["user"]
read = lambda of, name: (base64.b64decode(of[name + "-data"]) if name + "-data" in of
    else (pathlib.Path(config).parent / of[name]).read_bytes())
context = ssl.create_default_context(cadata=read(cluster, "certificate-authority").decode())
headers = {"Content-Type": "application/json"}
if token:
    headers["Authorization"] = "Bearer " + token
else:
    with tempfile.NamedTemporaryFile() as file:
        file.write(read(user, "client-certificate") + read(user, "client-key"))
        file.flush()
        context.load_cert_chain(file.name)
asked = urllib.request.Request(cluster["server"] + path, body.encode() or None, headers, method=method)
with urllib.request.urlopen(asked, context=context, timeout=300) as answer:
    for line in answer:
        print(line.decode(), end="", flush=True)
"""
"""A client that runs with the environment's clock: KUBECONFIG TOKEN METHOD PATH BODY."""


SLEEP = """
import select, time
time.sleep = lambda seconds: select.select((), (), (), seconds)
"""
"""libfaketime refuses Python's sleep, an absolute one of the monotonic clock, which waiting for a program uses."""


def faked(clock: Path) -> dict[str, str]:
    """Return the environment of processes with the wall clock of a file, which `jump` writes."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    clock.with_name("sitecustomize.py").write_text(SLEEP)
    only_wall = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    return only_wall | {
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "LD_PRELOAD": str(library),
        "PYTHONPATH": str(clock.parent),
    }


def jump(clock: Path, to: str) -> None:
    """Set the clock: `+21d`, `-1h`, `@1970-01-02 00:00:00`."""
    (fresh := clock.with_name("clock.new")).write_text(f"{to}\n")
    fresh.replace(clock)
