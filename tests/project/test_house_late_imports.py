"""Imports inside functions: each module that has some, how many at most, and what it gains. No others.

The figures are milliseconds of CPU on top of a start of the proxy in nftables mode, which takes some 350.
"""

import ast
from pathlib import Path

from tests.project.test_house_rules import MODULES, SOURCES, inside, statements

LATE = {
    "vipwire/cli/main.py": (4, "each command imports its own; `--help` and a shell's completion import none"),
    "vipwire/cli/start.py": (2, "a proxy starts without click (20) and without the other commands"),
    "vipwire/config/file.py": (3, "the decoder (30) with YAML (20), for a start with --config only"),
    "vipwire/config/flags.py": (1, "shlex (0.8), hardly ever used"),
    "vipwire/kube/access/kubeconfig.py": (2, "YAML (20), which a Pod with a service account never reads"),
    "vipwire/kube/client.py": (1, "email.utils (6), for a server that answers with a date only"),
    "vipwire/linux/netlink/nftables/generations.py": (1, "the listener (3), after the first sync"),
    "vipwire/linux/netlink/socket.py": (2, "ctypes (4), after the first sync"),
    "vipwire/model/spread.py": (1, "hashlib (2.4), for Maglev only"),
    "vipwire/model/text.py": (1, "difflib (1.5), for a mistake only"),
    "vipwire/modes/nftables/kernel.py": (1, "the flowtable's devices (2.6), for offload only"),
    "vipwire/process_lifecycle/cyclic_garbage.py": (1, "ctypes (4), for daemons only"),
    "vipwire/file_io/file_watch.py": (1, "ctypes (4), in a thread"),
    "vipwire/terminal/output.py": (1, "click (20), for a proxy that prints an error only"),
    "vipwire/proxy_daemon/handover/handover.py": (3, "leftovers (33) and rules (25), after the first sync"),
    "vipwire/proxy_daemon/proxy.py": (1, "the reader of manifests (60), for --manifests only"),
    "vipwire/proxy_daemon/serve/pages.py": (
        3,
        "prometheus_client.exposition (38) at the first scrape, the profiler (6)",
    ),
    "vipwire/proxy_daemon/sync/after_sync.py": (2, "the keeper of flows (15) and the watch of ejections (16)"),
    "vipwire_l7/gateway/cli.py": (1, "`--help` and completion in a fifth of the time"),
    "vipwire_l7/ingress/cli.py": (1, "the same"),
    "vipwire_up/cli.py": (4, "the same, in an eighth; `store migrate` needs the packages of `vipwire[etcd]`"),
    "vipwire_up/dns/cli.py": (1, "the same"),
    "vipwire_up/joining_cli.py": (5, "the same"),
    "vipwire_up/open_store.py": (2, "gRPC, for a store in etcd only"),
}


def late_imports(path: Path) -> int:
    functions = [node for node in statements(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return len({node for each in functions for node in inside(each) if isinstance(node, ast.Import | ast.ImportFrom)})


def test_imports_inside_functions_are_those_that_pay() -> None:
    found = {path.relative_to(SOURCES).as_posix(): late_imports(path) for path in MODULES}
    listed = {module: most for module, (most, _) in LATE.items()}
    assert {module: count for module, count in found.items() if count > listed.get(module, 0)} == {}
    assert listed.keys() <= {module for module, count in found.items() if count}
