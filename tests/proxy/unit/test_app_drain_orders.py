"""The file of drained endpoints: written whole, read by whoever looks, and never a traceback."""

import stat
from pathlib import Path

import pytest

from vipwire.errors import ConfigError
from vipwire.model.names import ObjectName
from vipwire.model.net import parse_address
from vipwire.model.node import Drain
from vipwire.proxy_daemon import drains
from vipwire.proxy_daemon.drains import (
    DrainOrder,
    change_orders,
    drains_path,
    next_end,
    read_orders,
    select_in_force,
)

FOUR, SIX = parse_address("10.244.1.11"), parse_address("fd00::11")
WEB, API = ObjectName("default", "web"), ObjectName("default", "api")
ORDERS = (
    DrainOrder(Drain(FOUR), 1.0),
    DrainOrder(Drain(FOUR, 80, WEB), 2.0, 30.0),
    DrainOrder(Drain(SIX, None, API), 3.5, 20.0),
)


def test_what_is_written_is_read_by_anybody(tmp_path: Path) -> None:
    path = drains_path(str(tmp_path / "run" / "vipwire"), "node-1")
    assert read_orders(path) == ()
    assert change_orders(path, lambda orders: (*orders, *ORDERS)) == ORDERS
    assert read_orders(path) == ORDERS
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert change_orders(path, lambda orders: orders[:1]) == ORDERS[:1]
    assert sorted(each.name for each in path.parent.iterdir()) == ["drained-node-1.json", "drained-node-1.lock"]


def test_a_jump_of_the_clock_moves_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, booted = drains_path(str(tmp_path), "node"), drains.boot_time()
    change_orders(path, lambda _: ORDERS)
    monkeypatch.setattr(drains, "boot_time", lambda: booted - 3600)
    assert read_orders(path) == ORDERS
    assert change_orders(path, lambda orders: orders) == ORDERS
    assert read_orders(path) == ORDERS
    monkeypatch.setattr(
        drains, "read_boot_id", lambda: "another"
    )  # the folder outlived a reboot: only the clock is there
    monkeypatch.setattr(drains, "boot_time", lambda: booted - 3600 + 10)
    assert [order.until for order in read_orders(path)] == [None, 20.0, 10.0]


def test_each_node_has_its_own_file_whatever_its_name() -> None:
    assert drains_path("/run/vipwire", "node-1") != drains_path("/run/vipwire", "node-2")
    assert drains_path("/run/vipwire", "../../etc/x").parent == Path("/run/vipwire")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ('{"version": 2, "drained": []}', "version 2 is not 1"),
        ('{"version": 1}', "missing required field `drained`"),
        ('{"version": 1, "drained": [{"service": null, "port": null}]}', "missing required field `address`"),
        (
            '{"version": 1, "drained": [{"address": "x", "service": null, "port": null, "since": 1, "until": null}]}',
            "x",
        ),
        ("\xff", "malformed"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "drained-node.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_orders(path)
    assert str(caught.value).startswith(f"{path}: not a list of drained endpoints (")
    assert said in str(caught.value)


def test_a_drain_is_in_force_until_its_end() -> None:
    assert select_in_force(ORDERS, 10.0) == {order.drain for order in ORDERS}
    assert next_end(ORDERS, 10.0) == 10.0
    assert select_in_force(ORDERS, 20.0) == {Drain(FOUR), Drain(FOUR, 80, WEB)}
    assert next_end(ORDERS, 30.0) is None


def test_what_is_not_said_of_a_drain_may_be_anything() -> None:
    assert Drain(FOUR).covers(WEB, FOUR, 80)
    assert not Drain(FOUR).covers(WEB, SIX, 80)
    assert not Drain(FOUR, 81).covers(WEB, FOUR, 80)
    assert not Drain(FOUR, 80, API).covers(WEB, FOUR, 80)
    assert str(Drain(SIX, 80, API)) == "[fd00::11]:80 of default/api"
