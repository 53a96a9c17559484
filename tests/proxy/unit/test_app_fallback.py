"""Which mode runs where the configured one cannot."""

from collections.abc import Iterable
from typing import cast

import pytest
from tests.fakes.kernel import DictBackend

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.modes.registry import list_specs
from vipwire.modes.spec import Mode
from vipwire.proxy_daemon.start.modes import build_mode


class Machine:
    """A machine on which only some modes work."""

    def __init__(self, *works: str) -> None:
        self._works = works
        self.asked: list[str] = []

    def build(self, config: Config, families: Iterable[Family]) -> dict[Family, Mode]:
        """Build a mode, if it works."""
        self.asked.append(config.proxy_mode)
        if config.proxy_mode not in self._works:
            raise UnsupportedError(f"no {config.proxy_mode} here")
        return {family: cast("Mode", DictBackend()) for family in families}


def test_without_the_flag_nothing_else_is_tried() -> None:
    machine = Machine("iptables")
    with pytest.raises(UnsupportedError, match=r"^no ipvs here$"):
        build_mode(Config(mode="ipvs"), Family, machine.build)
    assert machine.asked == ["ipvs"]


def test_each_mode_falls_back_in_its_order() -> None:
    for mode, ladder in ((spec.name, spec.fallback) for spec in list_specs()):
        for at, works in enumerate(ladder):
            machine = Machine(*ladder[at:])
            config, _ = build_mode(Config(mode=mode, proxy_mode_fallback=True), Family, machine.build)
            assert config.proxy_mode == works
            assert machine.asked == [mode, *ladder[: at + 1]]


def test_every_step_is_told_with_its_reason_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    build_mode(Config(mode="ipvs", proxy_mode_fallback=True), Family, Machine("userspace").build)
    told = [(record.getMessage(), record.__dict__["fields"]) for record in caplog.records]
    assert [(said, each["mode"], each["to"]) for said, each in told] == [
        ("falling back", "ipvs", "iptables"),
        ("falling back", "iptables", "nftables"),
        ("falling back", "nftables", "userspace"),
    ]
    assert [str(each["reason"]) for _, each in told] == ["no ipvs here", "no iptables here", "no nftables here"]
    assert "--proxy-mode=userspace" in told[-1][1]["remedy"]


def test_every_reason_is_given_when_nothing_works() -> None:
    machine = Machine()
    reasons = r"^no ipvs here\nno iptables here\nno nftables here\nno userspace here$"
    with pytest.raises(UnsupportedError, match=reasons):
        build_mode(Config(mode="ipvs", proxy_mode_fallback=True), Family, machine.build)
    assert machine.asked == ["ipvs", "iptables", "nftables", "userspace"]
