"""etcd on bad days: without a majority, full, restored, with wrong certificates; objects that move to it and back."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.etcd_here import Etcd, Tls, members
from tests.up.unit.store_here import etcd_store, key, now, prefix, put, remove, settings, text_of
from tests.up.unit.up_here import Up, up

from vipwire.errors import ConfigError
from vipwire_up.credentials.ca import Authority, CertificatePair
from vipwire_up.migrate_store import copy_to_etcd, copy_to_sqlite
from vipwire_up.store.etcd.client import CertificateError
from vipwire_up.store.etcd.settings import EtcdSettings, read_settings
from vipwire_up.store.record import CompactedError, Record, StoreError, StoreFullError

pytestmark = pytest.mark.slow

MAPS = "/api/v1/namespaces/default/configmaps"
ONE = {"metadata": {"name": "one"}, "data": {"k": "v"}}


@pytest.fixture
def one() -> Iterator[Etcd]:
    with members(1) as etcd:
        yield etcd


@contextlib.asynccontextmanager
async def server(folder: Path, given: EtcdSettings | None) -> AsyncIterator[Up]:
    async with up(folder, etcd=given, node="n0") as found:
        yield found


async def test_without_a_majority_old_reads_and_watches_go_on_and_writes_are_refused(tmp_path: Path) -> None:
    with members(3) as etcd:
        async with server(tmp_path / "a", settings(etcd, prefix())) as found:
            assert (await found.ask("POST", MAPS, ONE))[0] == 201
            async with found.session.get(f"{found.url}{MAPS}?watch=1&resourceVersion=0") as watch:
                for number in (1, 2):
                    etcd.stop(number)
                await refuses(found)
                for number in (1, 2):
                    etcd.start(number)
                await asyncio.to_thread(etcd.wait)
                code = 0
                while code != 201:
                    code, _ = await found.ask("POST", MAPS, {"metadata": {"name": "after"}})
                seen = ""
                while '"after"' not in seen:
                    seen = (await watch.content.readline()).decode()


async def refuses(found: Up) -> None:
    """See that a server answers what it knows, and refuses the rest as kube-apiserver does."""
    code, seen = await found.ask("GET", f"{MAPS}/one?resourceVersion=0")
    assert (code, seen["data"]) == (200, {"k": "v"})
    refused = await asyncio.gather(
        found.ask("GET", f"{MAPS}/one"),
        found.ask("GET", MAPS),
        found.ask("POST", MAPS, {"metadata": {"name": "two"}}),
        found.ask("DELETE", f"{MAPS}/one"),
    )
    for code, why in refused:
        assert (code, why["reason"]) in {(500, "ServerTimeout"), (504, "Timeout")}, why
    assert "could not be completed at this time, please try again" in refused[0][1]["message"]
    code, ready = await found.ask("GET", "/readyz?verbose")
    assert code == 500
    assert "[-]part-etcd failed" in ready


async def test_a_member_that_is_silent_is_left_for_another_one() -> None:
    with members(3) as etcd:
        async with asyncio.timeout(60):
            async with etcd_store(settings(etcd, prefix())) as store:
                (first,) = await store.write(put("a", "one"))
                etcd.processes[0].send_signal(signal.SIGSTOP)  # the one that is asked first
                (second,) = await store.write(put("a", "two", first.revision))
                assert store.read(key("a")) == second
                await store.wait_for_newest()


async def test_a_full_etcd_refuses_writes_and_goes_on_with_reads_and_deletions() -> None:
    with members(1, "--quota-backend-bytes", str(4 << 20)) as etcd:
        async with asyncio.timeout(60):
            async with etcd_store(settings(etcd, prefix())) as store:
                made: list[Record] = []

                async def fill() -> None:
                    for number in range(100):
                        made.extend(await store.write(put(f"n{number}", "x" * 400_000)))

                with pytest.raises(StoreFullError, match=r"etcd: .*database space exceeded"):
                    await fill()
                await store.wait_for_newest()
                assert store.count("things") == len(made) > 3
                await store.write(remove("n0", made[0].revision))
                assert store.read(key("n0")) is None
                assert text_of(store.read(key("n1"))) == "x" * 400_000


async def test_an_etcd_that_has_gone_back_is_read_again_and_its_watchers_are_told(one: Etcd) -> None:
    async with etcd_store(settings(one, prefix())) as store:
        revision = 0
        for _ in range(10):
            (made,) = await store.write(put("a", "lost", revision))
            revision = made.revision
        one.stop(0)
        shutil.rmtree(one.folder / "m0")
        one.start(0)
        async with asyncio.timeout(60):
            while store.read(key("a")) is not None:
                await store.wait_for_change("things")
        with pytest.raises(CompactedError):
            store.changes("things", revision)
        (again,) = await store.write(put("a", "new"))
        assert text_of(again) == "new"


def certified(folder: Path, when: datetime) -> tuple[Tls, CertificatePair]:
    """Make certificates for a member and for a client that are valid from a time on, for a year."""
    authority = Authority(folder, when)
    server, client = (
        authority.issue_server_certificate(["127.0.0.1"]),
        authority.issue_client_certificate("client", "vipwire", ()),
    )
    return Tls(server, client, authority.pair.certificate), client


def test_tls_that_fails_is_explained_by_the_certificate(tmp_path: Path) -> None:
    tls, good = certified(tmp_path / "etcd", now())
    other, stranger = certified(tmp_path / "stranger", now())
    _, old = certified(tmp_path / "old", datetime(2020, 1, 1, tzinfo=UTC))

    def opened(etcd: Etcd, own: CertificatePair, authority: Path) -> None:
        async def scenario() -> None:
            own_files = {"etcd-certfile": str(own.certificate), "etcd-keyfile": str(own.key)}
            flags = own_files | {"etcd-cafile": str(authority)}
            async with etcd_store(settings(etcd, prefix(), **flags)) as store:
                await store.write(put("a"))

        asyncio.run(scenario())

    with members(1, tls=tls) as etcd:
        opened(etcd, good, tls.authority)
        with pytest.raises(CertificateError, match=r"is not valid: .*local issuer"):
            opened(etcd, good, other.authority)
        with pytest.raises(CertificateError, match=r"refuses the connection: .*may not trust the issuer"):
            opened(etcd, stranger, tls.authority)
        with pytest.raises(
            CertificateError,
            match=(
                r"refuses the connection: .*is valid from .* to .*, and the "
                r"time is"
            ),
        ):
            opened(etcd, old, tls.authority)


async def test_a_member_that_is_passed_over_is_named_while_the_others_answer(tmp_path: Path) -> None:
    tls, good = certified(tmp_path / "etcd", now())
    other, _ = certified(tmp_path / "stranger", now())
    files = {"etcd-cafile": str(tls.authority), "etcd-certfile": str(good.certificate), "etcd-keyfile": str(good.key)}

    async def until_named(found: Up, text: str) -> None:
        code, page = await found.ask("GET", "/readyz?verbose")
        while text not in page:
            assert code == 200, page
            await asyncio.sleep(0.2)
            code, page = await found.ask("GET", "/readyz?verbose")

    with members(3, tls=tls) as etcd:
        async with asyncio.timeout(120):
            async with server(tmp_path / "a", settings(etcd, prefix(), **files)) as found:
                await until_named(found, "[+]part-etcd ok\n")
                named = f"[+]part-etcd ok, but skipping etcd at 127.0.0.1:{etcd.ports[2][0]}: "
                etcd.stop(2)
                pair = ("--cert-file", str(other.server.certificate), "--key-file", str(other.server.key))
                etcd.start(2, *pair)
                await until_named(found, f"{named}the certificate of 127.0.0.1:{etcd.ports[2][0]} is not valid")
                etcd.stop(2)
                await until_named(found, f"{named}failed to connect")
                etcd.start(2)
                await until_named(found, "[+]part-etcd ok\n")
                assert (await found.ask("POST", MAPS, ONE))[0] == 201


def test_users_and_passwords(one: Etcd, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess\n")
    for words in ("user add root:secret", "user grant-role root root", "auth enable"):
        one.ctl(*words.split())

    def opened(**flags: str) -> None:
        async def scenario() -> None:
            async with etcd_store(settings(one, prefix(), **flags)) as store:
                await store.write(put("a", lifetime=60))

        asyncio.run(scenario())

    opened(**{"etcd-username": "root", "etcd-password-file": str(tmp_path / "password")})
    with pytest.raises(StoreError, match=r"etcd: .*user name is empty"):
        opened()
    with pytest.raises(StoreError, match=r"etcd: .*authentication failed"):
        opened(**{"etcd-username": "root", "etcd-password-file": str(tmp_path / "wrong")})


def test_without_its_packages_it_says_how_to_install_them(tmp_path: Path) -> None:
    words = ["up", "--data-dir", str(tmp_path), "--no-proxy", "--no-dns", "--secure-port", "0"]
    words += ["--store", "etcd", "--etcd-servers", "http://127.0.0.1:1"]
    program = "import sys; sys.modules['grpc'] = None; from vipwire.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert "etcd needs the packages grpcio and protobuf" in done.stderr
    assert "pip install 'vipwire[etcd]'" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "name at least one server"),
        ({"etcd-servers": "10.0.0.1:2379"}, "is not a URL"),
        ({"etcd-servers": "http://h:1", "etcd-cafile": "/ca"}, "must begin with https"),
        ({"etcd-servers": "https://h:1", "etcd-certfile": "/c"}, "go together"),
        ({"etcd-servers": "https://h:1", "etcd-cafile": "/none"}, "--etcd-cafile /none: No such file"),
        ({"etcd-servers": "https://h:1", "etcd-prefix": "x/"}, "must begin with a slash"),
        ({"etcd-servers": "https://h:1", "etcd-username": "u"}, "go together"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_settings(flags)


def test_a_prefix_of_another_cluster_is_refused(one: Etcd, tmp_path: Path) -> None:
    given = settings(one, prefix())

    def begin(name: str) -> None:
        async def scenario() -> None:
            async with server(tmp_path / name, given):
                pass

        asyncio.run(scenario())

    begin("first")
    begin("first")
    with pytest.raises(BaseExceptionGroup) as refused:
        begin("second")
    assert "has a cluster at prefix" in str(refused.value.exceptions[0])
    Authority(tmp_path / "second/pki", now())
    with pytest.raises(BaseExceptionGroup) as refused:
        begin("second")
    assert "has another cluster at prefix" in str(refused.value.exceptions[0])


async def test_objects_move_to_etcd_and_back(one: Etcd, tmp_path: Path) -> None:
    given, folder = settings(one, prefix()), tmp_path / "a"

    async with server(folder, None) as found:
        for _ in range(30):
            await found.ask("POST", MAPS, ONE)
            await found.ask("DELETE", f"{MAPS}/one")
        await found.ask("POST", MAPS, ONE)
        _, before = await found.ask("GET", f"{MAPS}/one")
    assert await copy_to_etcd(folder, given, now) > 5
    await cannot_begin(folder, None)
    async with server(folder, given) as found:
        _, moved = await found.ask("GET", f"{MAPS}/one")
        assert without_revision(moved) == without_revision(before)
        assert revision_of(moved) > revision_of(before)
        await found.serves_others()
        with pytest.raises(StoreError, match="n0: its API server runs"):
            await copy_to_sqlite(folder, given, now)
    await copy_to_sqlite(folder, given, now)
    await cannot_begin(folder, given)
    async with server(folder, None) as found:
        _, back = await found.ask("GET", f"{MAPS}/one")
        assert without_revision(back) == without_revision(before)
        assert revision_of(back) > revision_of(moved)
        assert (await found.ask("GET", "/api/v1/namespaces/default/services/good"))[0] == 200


async def cannot_begin(folder: Path, given: EtcdSettings | None) -> None:
    with pytest.raises(BaseExceptionGroup):
        async with server(folder, given):
            pass


def without_revision(value: dict[str, Any]) -> dict[str, Any]:
    return value | {"metadata": {k: v for k, v in value["metadata"].items() if k != "resourceVersion"}}


def revision_of(value: dict[str, Any]) -> int:
    return int(value["metadata"]["resourceVersion"])
