"""Distributes a parallel session (`pytest -n 4 --dist loadscope`) among its processes.

A share runs in one process without interruption: the guests of ipvs mode (see `kernel.guests`), in two shares; a
mode's whole conformance suite, because clusters take seconds to build; any other file. The longest come first. Four
processes on fewer cores keep the cores busy, because guests and packets wait much.
"""

import re
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_GUEST: Final = re.compile(r"::test_in_the_guest\[(?P<suite>.*)\]$")
_LONGEST: Final = "conformance-changing"
_MODE: Final = re.compile(
    r"^tests/proxy/conformance/.*\[(?P<mode>nftables|ebpf|iptables-nft|iptables-legacy|userspace|ipvs)-(?!to-)"
)
BEHIND: Final = ("tests/proxy/cases/test_cases.py", "tests/proxy/unit/test_model_net.py")
"""xdist runs a test when it knows the next one, so these short files stand behind the guests."""
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
        return "the longest guest" if found["suite"] == _LONGEST else "other guests"
    found = _MODE.search(nodeid)
    return f"conformance of {found['mode']}" if found else nodeid.partition("::")[0]


def turn(nodeid: str) -> tuple[int, str]:
    """Return a share's turn as a sort key. Within a share, and among files, the order stays."""
    name = share(nodeid)
    if name.endswith(("guest", "guests")):
        return 0, name
    if name.startswith("conformance of"):
        return 1, name
    if name in BEHIND:
        return 2, name
    if name in LONG:
        return 3, ""
    found = _FOLDERS.match(name)
    return 4 + (_KINDS.index(found["kind"]) if found else len(_KINDS)), ""


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # xdist says no types
    """Hands out shares in the order of collection, which `turn` has sorted."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid)
