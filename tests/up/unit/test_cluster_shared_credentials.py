"""What API servers tell each other of their tokens, of what is withdrawn, and of machines that have left."""

from datetime import UTC, datetime, timedelta

import pytest

from vipwire_up.api.serving.authorization import User
from vipwire_up.credentials.identity import Access, Withdrawn
from vipwire_up.credentials.machine_records import (
    IssuedCertificate,
    MachineRecord,
    build_machine_secret,
    read_machine_record,
)
from vipwire_up.credentials.records import TokenRecord, build_server_secret, encode_texts, read_token_record
from vipwire_up.credentials.revocation import Revoked

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=365)
OLD, NEW = b"\x01" * 32, b"\x02" * 32
USER = User('a,"b"', ("vipwire:view", "system:authenticated"))


def test_a_servers_record_is_read_as_it_was_written() -> None:
    revoked = Revoked(frozenset({0x5D3A91}), frozenset({"viewer"}))
    record = TokenRecord("a", {OLD: USER, NEW: User("x", ())}, frozenset({b"\x03" * 32}), revoked)
    assert read_token_record(build_server_secret(record)) == record


def test_a_token_that_is_there_no_more_is_withdrawn_until_it_is_there_again() -> None:
    record = TokenRecord("a", {OLD: USER}).with_current({NEW: USER}, Revoked())
    assert record == TokenRecord("a", {NEW: USER}, frozenset({OLD}))
    assert record.with_current({NEW: USER}, Revoked()) == record
    assert record.with_current({OLD: USER}, Revoked()).withdrawn == {NEW}


def test_a_machines_record_is_read_as_it_was_written_without_what_is_over() -> None:
    first, second, over = IssuedCertificate(0xAB, LATER), IssuedCertificate(2, LATER), IssuedCertificate(3, NOW)
    record = MachineRecord("n2").with_issued(first).with_all_refused(over).with_issued(second)
    assert read_machine_record(build_machine_secret(record, NOW)) == MachineRecord(
        "n2", frozenset({second}), frozenset({first})
    )


@pytest.mark.parametrize("text", ["none", "xyz 2030-01-01T00:00:00Z", "12 yesterday", "12 2030-01-01T00:00:00", ","])
def test_what_is_odd_in_a_record_is_left_out(text: str) -> None:
    data = encode_texts(dict.fromkeys(("given", "refused", "tokens", "withdrawn", "revoked"), f"{text}\n"))
    for prefix, kind in (("machine", "vipwire.io/machine"), ("server", "vipwire.io/server")):
        secret = {"metadata": {"name": f"vipwire-{prefix}-n2"}, "type": kind, "data": data}
        assert read_machine_record(secret) in (None, MachineRecord("n2"))
        assert read_token_record(secret) in (None, TokenRecord("n2"))


def test_a_secret_of_another_type_is_no_record() -> None:
    secret = {"metadata": {"name": "vipwire-server-a"}, "type": "Opaque", "data": {}}
    assert read_token_record(secret) is None
    assert read_machine_record(secret) is None


def test_what_is_withdrawn_anywhere_counts_more_than_what_is_known_here() -> None:
    access = Access({"word": USER})
    (digest,) = access.own
    assert access.set_shared_credentials({NEW: USER}, Withdrawn())
    assert not access.set_shared_credentials({NEW: USER}, Withdrawn())
    assert access.user_of("word") == USER
    assert access.set_shared_credentials({}, Withdrawn(frozenset({digest})))
    assert access.user_of("word") is None
