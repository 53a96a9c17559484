"""Typical Pods: aiohttp, Flask on gunicorn, Node's http. Each answers how it has read a request.

Below /admin, /@team and /caf%C3%A9 each has guarded handlers; /admin/public is open. Node's http has no routes: its
Pod answers with the results of each usual way to read `req.url`, and which requests reached a guarded handler.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_AIOHTTP = """
import sys
from aiohttp import web
def told(name):
    async def tell(request):
        return web.json_response({"raw": request.raw_path, "handlers": [name]})
    return tell
app = web.Application()
for path, name in PATHS:
    app.router.add_route("*", path + "{tail:(/.*)?}", told(name))
app.router.add_route("*", "/{tail:.*}", told("open"))
web.run_app(app, host=sys.argv[1], port=int(sys.argv[2]), print=None)
"""
_FLASK = """
from flask import Flask, jsonify, request
from werkzeug.routing import PathConverter
class Rest(PathConverter):
    part_isolating = False
    regex = ".*?"  # Flask's own leaves out what begins with a slash: /admin/public//x would be below /admin
app = Flask(__name__, static_folder=None)
app.url_map.converters["rest"] = Rest
def told(name):
    def tell(**_):
        return jsonify(raw=request.environ["RAW_URI"], handlers=[name])
    return tell
for number, (path, name) in enumerate((*PATHS, ("", "open"))):
    if path:
        app.add_url_rule(path, f"{number}", told(name))
    app.add_url_rule(path + "/<rest:tail>", f"{number}-below", told(name))
"""
_NODE = """
const http = require("http"), path = require("path")
const tries = [
  (url) => url.split("?")[0],
  (url) => new URL(url, "http://pod").pathname,
  (url) => new URL("http://pod" + url).pathname,
  (url) => path.posix.normalize(url.split("?")[0]),
]
const mores = [
  (text) => text,
  (text) => decodeURIComponent(text),
  (text) => decodeURIComponent(decodeURIComponent(text)),
  (text) => path.posix.normalize(decodeURIComponent(text)),
  (text) => path.win32.normalize(decodeURIComponent(text)).replace(/\\\\/g, "/"),
  (text) => text.replace(/;[^/]*/g, ""),
  (text) => path.posix.normalize(text.replace(/;[^/]*/g, "")),
  (text) => path.posix.normalize(decodeURIComponent(text.replace(/;[^/]*/g, ""))),
  (text) => decodeURIComponent(text).replace(/[;?#\\0].*/, ""),
  (text) => decodeURIComponent(text).replace(/\\/+/g, "/"),
]
const read = (url) => {
  const found = new Set()
  for (const first of tries) for (const then of mores) {
    try { found.add(then(first(url))) } catch { }
  }
  return [...found]
}
const guarded = []
http.createServer((request, response) => {
  const handlers = read(request.url).map((text) => {
    for (const [path, name] of PATHS) if (text === path || text.startsWith(path + "/")) return name + " " + text
    return "open " + text
  })
  if (handlers.some((each) => each.startsWith("guarded"))) guarded.push(request.url)
  response.end(JSON.stringify({raw: request.url, handlers, guarded: guarded.slice(0, 9)}))
}).listen(+process.argv[3], process.argv[2])
"""
_PATHS = (("/admin/public", "open"), ("/admin", "guarded"), ("/@team", "guarded"), ("/café", "guarded"))
FRAMEWORKS = ("aiohttp", "flask", "node")


def _command(name: str, folder: Path, address: str, port: int) -> tuple[str, ...]:
    source = {"aiohttp": _AIOHTTP, "flask": _FLASK, "node": _NODE}[name]
    paths = (*_PATHS, ("/caf%C3%A9", "guarded"), ("/caf%c3%a9", "guarded")) if name == "node" else _PATHS
    file = folder / f"pod_{name}.{'js' if name == 'node' else 'py'}"
    file.write_text(source.replace("PATHS", json.dumps(paths)), encoding="utf-8")
    if name == "node":
        return ("node", str(file), address, str(port))
    if name == "aiohttp":
        return (sys.executable, str(file), address, str(port))
    bind = ("--bind", f"{address}:{port}", "--pythonpath", str(folder), "--log-level", "error")
    return (sys.executable, "-m", "gunicorn", *bind, "--threads", "4", "pod_flask:app")


@contextlib.contextmanager
def framework(name: str, folder: Path, address: str, port: int) -> Iterator[None]:
    """Run a Pod of a framework for the block."""
    with subprocess.Popen(_command(name, folder, address, port), stdout=subprocess.DEVNULL) as process:
        try:
            _wait(process, address, port)
            yield
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], address: str, port: int) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} has ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} does not listen")
