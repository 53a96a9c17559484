"""Distributes a parallel session (`pytest -n 4 --dist loadscope`) among its processes.

A share runs in one process without interruption: each guest of ipvs mode (see `kernel.guests`); a mode's whole
conformance suite, because clusters take seconds to build; any other file. The longest come first. Four processes more
than cores keep the cores busy, because guests and packets wait much.
"""

import re
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_GUEST: Final = re.compile(r"::test_in_the_guest\[(?P<suite>.*)\]$")
MODES: Final = ("nftables", "iptables-nft", "ebpf", "iptables-legacy", "userspace", "ipvs")
"""The modes with most tests first."""
_MODE: Final = re.compile(rf"^tests/proxy/conformance/.*\[(?P<mode>{'|'.join(MODES)})-(?!to-)")
BEHIND: Final = {
    "tests/proxy/cases/test_cases.py": "conformance-changing",
    "tests/proxy/unit/test_model_net.py": "conformance-standing",
    "tests/proxy/unit/test_model_text.py": "packets",
}
"""Short files, each in the share of a guest: otherwise xdist puts any share behind it, which then waits."""
LONG: Final = tuple(
    f"tests/{name}.py"
    for name in (
        "up/unit/test_cluster_kubectl",
        "up/unit/test_cluster_up",
        "up/unit/test_cluster_api_bounds",
        "proxy/unit/test_kube_client",
        "proxy/laws/test_core_laws",
        "proxy/laws/test_nftables_agreement",
    )
)
"""Files of `make check` that take ten seconds or more: they must not begin last."""
_FOLDERS: Final = re.compile(r"^tests/(?:[a-z0-9]+/)?(?P<kind>kernel|project|ingress|attacks|conformance|fuzz|laws)/")
_KINDS: Final = ("kernel", "project", "ingress", "attacks", "conformance", "fuzz", "laws")


def is_share(config: pytest.Config) -> bool:
    """Report whether this process runs only a part of a session."""
    return hasattr(config, "workerinput")


def share(nodeid: str) -> str:
    if found := _GUEST.search(nodeid):
        return f"guest of {found['suite']}"
    if found := _MODE.search(nodeid):
        return f"conformance of {found['mode']}"
    name = nodeid.partition("::")[0]
    return f"guest of {BEHIND[name]}" if name in BEHIND else name


def turn(nodeid: str) -> tuple[int, str]:
    """Return a test's turn as a sort key. A guest begins its share; otherwise the order stays."""
    name = share(nodeid)
    if name.startswith("guest of"):
        return 0, name + ("" if _GUEST.search(nodeid) else ", then")
    if name.startswith("conformance of"):
        return 1, str(MODES.index(name.removeprefix("conformance of ")))
    if name in LONG:
        return 2, ""
    found = _FOLDERS.match(name)
    return 3 + (_KINDS.index(found["kind"]) if found else len(_KINDS)), ""


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # xdist says no types
    """Hands out shares in the order of collection, which `turn` has sorted."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid)
