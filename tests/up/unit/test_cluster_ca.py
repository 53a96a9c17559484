"""The certificate authority and the credentials: made once, kept, renewed, refused where they are broken."""

import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from vipwire.errors import ConfigError
from vipwire_up.api.serving.authorization import Role
from vipwire_up.credentials.ca import Authority
from vipwire_up.credentials.identity import IDENTITIES, load_tokens

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_servers_certificate_is_good_for_its_names_and_signed(tmp_path: Path) -> None:
    authority = Authority(tmp_path, NOW)
    made = certificate(authority.issue_server_certificate(["localhost", "127.0.0.1", "::1"]).certificate)
    made.verify_directly_issued_by(certificate(authority.pair.certificate))
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert sorted(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "::1"]
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_clients_certificate_says_who_and_which_groups(tmp_path: Path) -> None:
    pair = Authority(tmp_path, NOW).issue_client_certificate("view", "viewer", ("g1", "g2"))
    assert certificate(pair.certificate).subject.rfc4514_string() == "CN=viewer,O=g2,O=g1"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(pair.certificate, pair.key)


def test_what_is_good_is_kept_and_what_is_not_is_made_again(tmp_path: Path) -> None:
    first = Authority(tmp_path, NOW)
    pair = first.issue_server_certificate(["localhost"])
    authority, server = first.pair.certificate.read_bytes(), pair.certificate.read_bytes()
    later = Authority(tmp_path, NOW + timedelta(days=19))
    assert later.issue_server_certificate(["localhost"]).certificate.read_bytes() == server
    assert later.issue_server_certificate(["localhost", "more"]).certificate.read_bytes() != server
    renewed = pair.certificate.read_bytes()
    two_thirds = Authority(tmp_path, NOW + timedelta(days=19 + 20))
    assert two_thirds.issue_server_certificate(["localhost"]).certificate.read_bytes() != renewed
    assert two_thirds.pair.certificate.read_bytes() == authority


def test_a_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    pair, other = (
        Authority(tmp_path, NOW).issue_client_certificate("admin", "admin", ()),
        Authority(tmp_path / "other", NOW).pair,
    )
    for path in (other.certificate, other.key):
        path.rename(tmp_path / path.name)
    authority = Authority(tmp_path, NOW)
    authority.issue_client_certificate("admin", "admin", ())
    certificate(pair.certificate).verify_directly_issued_by(certificate(authority.pair.certificate))


def test_names_that_no_certificate_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tls-san 'bücher'"):
        Authority(tmp_path, NOW).issue_server_certificate(["bücher"])


def test_tokens_are_written_once_and_read_as_kubernetes_does(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    users = load_tokens(path)
    assert [user.name for user in users.values()] == [identity.user for identity in IDENTITIES]
    assert load_tokens(path) == users
    path.write_text('# a comment\nsecret,me,1,"system:masters,other"\nplain,you,2\n')
    users = load_tokens(path)
    assert users["secret"].groups == (Role.ADMIN.value, "other", "system:authenticated")
    assert users["plain"].groups == ("system:authenticated",)


@pytest.mark.parametrize("line", ["token", ",user,uid", "token,,uid", "a,b,c,d,e"])
def test_a_broken_line_of_tokens_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text(f"good,me,1\n{line}\n")
    with pytest.raises(ConfigError, match=r"tokens\.csv: line 2: expected token,user,uid"):
        load_tokens(path)


def serves(authority: Authority) -> None:
    """Load what a server loads."""
    authority.build_server_context(authority.issue_server_certificate(["localhost"]))


KILLED = """
import datetime as dt, os, sys
from pathlib import Path
from vipwire_up.credentials.ca import Authority
now = dt.datetime.fromisoformat(sys.argv[1])
def dies(folder, most):
    left = [most]
    def count(event, arguments):
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(folder) in str(arguments[0]):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
    if (child := os.fork()) == 0:
        sys.addaudithook(count)
        Authority(folder, now).issue_server_certificate(["localhost"])
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0
for root in sys.argv[2:]:
    print(next(n for n in range(60) if not dies(Path(root) / str(n), n)))
"""


@pytest.mark.slow
def test_killed_between_any_two_files_the_next_start_has_sound_keys(tmp_path: Path) -> None:
    later, first, renewed = NOW + timedelta(days=350), tmp_path / "first", tmp_path / "renewed"
    first.mkdir()
    for number in range(60):
        serves(Authority(renewed / str(number), NOW))
    command = [sys.executable, "-c", KILLED, later.isoformat(), str(first), str(renewed)]
    said = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout.split()
    for root, steps in zip((first, renewed), map(int, said), strict=True):
        assert steps > 8
        for number in range(steps + 1):
            serves(Authority(root / str(number), later))
            made = certificate(root / str(number) / "server.crt")
            assert made.not_valid_after_utc == later + timedelta(days=30)


def test_a_certificate_that_is_not_of_the_key_beside_it_is_made_again(tmp_path: Path) -> None:
    pair = Authority(tmp_path / "a", NOW).issue_server_certificate(["localhost"])
    other = Authority(tmp_path / "b", NOW).issue_server_certificate(["localhost"])
    pair.key.write_bytes(other.key.read_bytes())
    serves(Authority(tmp_path / "a", NOW))


@pytest.mark.parametrize("wrong", [NOW + timedelta(days=2), datetime(1970, 1, 1, tzinfo=UTC)])
def test_what_was_made_with_a_wrong_clock_is_made_again_for_the_same_key(tmp_path: Path, wrong: datetime) -> None:
    first = Authority(tmp_path, wrong)
    client = first.issue_client_certificate("view", "viewer", ("g",)).certificate.read_bytes()
    key = first.pair.key.read_bytes()
    now = Authority(tmp_path, NOW)
    trusted = certificate(now.pair.certificate)
    pairs = now.issue_server_certificate(["localhost"]), now.issue_client_certificate("view", "viewer", ("g",))
    for made in (trusted, *(certificate(pair.certificate) for pair in pairs)):
        assert made.not_valid_before_utc <= NOW - timedelta(hours=1)
        assert made.not_valid_after_utc >= NOW + timedelta(days=30)
        made.verify_directly_issued_by(trusted)
    assert now.pair.key.read_bytes() == key
    x509.load_pem_x509_certificate(client).verify_directly_issued_by(trusted)


def test_a_revoked_certificate_is_made_again_with_another_key(tmp_path: Path) -> None:
    pair = Authority(tmp_path, NOW).issue_client_certificate("view", "viewer", ("g",))
    serial, key = certificate(pair.certificate).serial_number, pair.key.read_bytes()
    Authority(tmp_path, NOW, {serial}).issue_client_certificate("view", "viewer", ("g",))
    assert certificate(pair.certificate).serial_number != serial
    assert pair.key.read_bytes() != key


def test_an_authority_whose_certificate_is_of_another_key_says_what_to_do(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "a", NOW), Authority(tmp_path / "b", NOW)
    ours.pair.key.write_bytes(other.pair.key.read_bytes())
    with pytest.raises(
        ConfigError,
        match=(
            r"ca\.crt: does not match the key beside it: restore the right "
            r"certificate, or delete"
        ),
    ):
        Authority(tmp_path / "a", NOW)
