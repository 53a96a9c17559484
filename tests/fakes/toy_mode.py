"""A mode in one file, to prove that a mode needs only itself and one line: keeps its objects in JSON files.

`python -m tests.fakes.toy_mode COMMAND …` is vipwire with this mode registered. An environment variable names the
folder.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.fakes.kernel import PlainMode

from vipwire.config.configuration import Config
from vipwire.config.modes import ModeSettings, register_temporarily
from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl
from vipwire.modes.inspection import Inspection
from vipwire.modes.spec import Difference, Driver, Mode, ModeSpec, NatPriorities, Tool, clean_by
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta, apply_delta

FOLDER: Final = "TOY_FOLDER"
MODE: Final = ModeSpec(
    name="toy",
    driver="tests.fakes.toy_mode",
    inspection="tests.fakes.toy_mode",
    settings=ModeSettings(periods="nftables", masquerading="iptables"),
    for_whom="a test",
    page="toy.md",
    fallback=("nftables",),
    differences=(Difference(("S1",), "packets arrive", "a file moves none"),),
    tools=(Tool("toy-tool", "shows the file of toy mode"),),
)


class ToyMode(PlainMode):
    """The objects of one family, in a file."""

    def __init__(self, family: Family) -> None:
        self._file = Path(os.environ[FOLDER]) / f"{family.value}.json"

    def render_node(self, node: NodePlan) -> Mapping[str, str]:
        """Return one object."""
        return {"node": node.name}

    def render(self, plan: ServicePlan) -> Rendered[str, str]:
        """Return one object for each frontend."""
        return Rendered({str(each.key): type(each.action).__name__ for each in plan.frontends})

    def observe(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return found

    def changed(self) -> bool:
        """Report no change: no other program writes the file."""
        return False

    def commit(self, delta: Delta[str, str]) -> int:
        text = json.dumps(apply_delta(self.observe(), delta))
        self._file.write_text(text)
        return len(text)

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def describe(self, key: str) -> str:
        return f"toy {key}"

    def delete(self) -> bool:
        found = self._file.exists()
        self._file.unlink(missing_ok=True)
        return found


def _build(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    """Build the mode if the folder exists."""
    del config, prepare
    if FOLDER not in os.environ:
        raise UnsupportedError(f"toy mode needs a folder: set {FOLDER}")
    return {family: ToyMode(family) for family in families}


DRIVER: Final = Driver(
    build=_build,
    supposed=lambda config, families: _build(config, families, prepare=False),
    attempt=lambda _config, _families: None,
    sysctls=lambda _: (Sysctl("net/ipv4/conf/all/log_martians", 1),),  # a new namespace has another value
    priorities=NatPriorities(),
    kernel_counters={},
    cleaners=clean_by(_build),
    owner=lambda _: None,
    remains=lambda _family, _running: None,
    translates=lambda _: False,
    wrap_backend=lambda backend, _others: backend,
)

INSPECTION: Final = Inspection(lambda _family, _mode: None)


def main() -> Any:
    from vipwire.cli.main import main as vipwire  # noqa: PLC0415  # the mode is registered by then

    with register_temporarily(MODE.name, MODE.driver):
        return vipwire()


if __name__ == "__main__":
    sys.exit(main())
