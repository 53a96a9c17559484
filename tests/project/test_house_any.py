"""`Any` stands at the edges only: each room that has some, in how many modules at most, and its edge. No others."""

import ast
from collections import Counter

from tests.project.test_house_rules import MODULES, SOURCES, statements

EDGES = {
    "vipwire/cli": (2, "click's own signatures; a package that is loaded late"),
    "vipwire/config": (8, "YAML; values of rows, whose kinds are values"),
    "vipwire/file_io": (1, "ctypes"),
    "vipwire/http_client": (1, "parsers of httptools and zlib"),
    "vipwire/http_server": (4, "the parser of httptools, certificates of ssl"),
    "vipwire/inspect": (22, "JSON of commands and pages; keys of any mode"),
    "vipwire/kube": (6, "JSON of an API server, YAML"),
    "vipwire/linux": (2, "ctypes, struct"),
    "vipwire/logging": (1, "fields of a record"),
    "vipwire/model": (1, "dataclasses.Field"),
    "vipwire/modes": (8, "keys and values of any mode, for the interface, ebpf mode and a first commit"),
    "vipwire/plan": (1, "values of annotations, by rows"),
    "vipwire/process_lifecycle": (2, "JSON of a claim; typing.Coroutine"),
    "vipwire/proxy_daemon": (5, "keys and values of any mode; JSON; rows of metrics"),
    "vipwire/reconcile": (2, "keys and values of any mode"),
    "vipwire/relay": (1, "items of timers"),
    "vipwire/terminal": (2, "click's own signatures"),
    "vipwire_l7/gateway": (1, "JSON of objects"),
    "vipwire_l7/watch": (1, "JSON of objects"),
    "vipwire_lab": (1, "JSON of results, click's own signatures"),
    "vipwire_lab/cluster": (2, "JSON of objects, subprocess.Popen"),
    "vipwire_lab/compare": (1, "JSON of objects"),
    "vipwire_lab/connectivity": (5, "JSON of objects"),
    "vipwire_lab/demo": (2, "subprocess.Popen"),
    "vipwire_lab/echo_servers": (2, "JSON of orders"),
    "vipwire_up": (5, "JSON of objects"),
    "vipwire_up/announcing": (2, "JSON of objects"),
    "vipwire_up/api": (35, "JSON of objects and their schemas, the server's own trade"),
    "vipwire_up/bgp": (1, "typing.Coroutine"),
    "vipwire_up/controllers": (7, "JSON of objects"),
    "vipwire_up/credentials": (1, "certificates of ssl"),
    "vipwire_up/dns": (4, "dnspython"),
    "vipwire_up/joining": (3, "JSON of objects, YAML"),
    "vipwire_up/nodes": (3, "JSON of objects, click's own signatures"),
    "vipwire_up/store": (6, "messages of gRPC, futures of any result"),
    "vipwire_up/supervision": (1, "typing.Coroutine"),
    "vipwire_up/watchdog": (1, "a guard of any kind of object"),
}


def test_any_stands_at_the_listed_edges() -> None:
    found = Counter[str]()
    for path in MODULES:
        imported = (node for node in statements(path) if isinstance(node, ast.ImportFrom) and node.module == "typing")
        room = "/".join(path.relative_to(SOURCES).parts[:-1][:2])
        found[room] += any(name.name == "Any" for node in imported for name in node.names)
    assert {room: count for room, count in found.items() if count > EDGES.get(room, (0, ""))[0]} == {}
    assert {room for room in EDGES if not found[room]} == set()
