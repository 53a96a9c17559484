"""Two ingresses that would share a port are told apart by what they listen at, however it is written."""

import contextlib
import uuid
from pathlib import Path

import pytest

from vipwire.errors import ConfigError
from vipwire.process_lifecycle.single_instance import AlreadyRunningError
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.run.claim import claim_ingress


def layout(http: str, https: str = "") -> Layout:
    return Layout("", "", http, https)


SHARED = [
    ("*:81", "192.0.2.1:81"),
    ("192.0.2.1:81", "*:81"),
    ("0.0.0.0:81", "192.0.2.1:81"),
    ("[::]:81", "[2001:db8::1]:81"),
    ("[::]:81", "192.0.2.1:81"),
    (":81", "*:81"),
    ("[2001:db8::1]:81", "[2001:DB8:0::1]:81"),
    ("[::ffff:192.0.2.1]:81", "192.0.2.1:81"),
]


@pytest.mark.parametrize(("first", "second"), SHARED)
def test_one_at_a_common_address_is_refused_and_the_first_named(tmp_path: Path, first: str, second: str) -> None:
    with claim_ingress(tmp_path / "a", layout(first), takeover=False), contextlib.ExitStack() as stack:
        with pytest.raises(AlreadyRunningError, match=f"vipwire ingress.*run directory {tmp_path}/a"):
            stack.enter_context(claim_ingress(tmp_path / "b", layout("", second), takeover=False))
        with pytest.raises(ConfigError, match=f"start with --run-dir {tmp_path}/a"):
            stack.enter_context(claim_ingress(tmp_path / "b", layout(second), takeover=True))


def test_a_gateway_is_called_by_its_own_name(tmp_path: Path) -> None:
    options = layout("*:81")
    with (
        claim_ingress(tmp_path, options, takeover=False, command="vipwire gateway"),
        pytest.raises(AlreadyRunningError, match="vipwire gateway "),
        claim_ingress(tmp_path, options, takeover=False),
    ):
        pass


def test_others_run_beside_each_other(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for place in ("192.0.2.1:81", "192.0.2.2:81", "[2001:db8::1]:81", "*:82", "[::1]:83"):
            folder = tmp_path / uuid.uuid4().hex[:8]
            stack.enter_context(claim_ingress(folder, layout(place), takeover=False))


def test_one_that_listens_twice_is_no_rival_of_itself(tmp_path: Path) -> None:
    for places in (("*:81", "192.0.2.1:81"), ("*:81", "*:81")):
        with claim_ingress(tmp_path, layout(*places), takeover=False):
            pass
