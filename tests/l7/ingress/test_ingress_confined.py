"""`vipwire ingress` as root: whom HAProxy's workers run as, and that nothing is left behind that nobody has left."""

import asyncio
import os
import pwd
import signal
from pathlib import Path

import pytest
import yaml
from tests.l7.ingress.site import TRIAL, certificate, endpoint, endpoint_slice, ingress, rule, service, tls_secret
from tests.l7.ingress.test_ingress_daemon import Daemon, daemon, objects, parent_of, pod, write

from vipwire.process_lifecycle.single_instance import Claim
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.ingress.served import Ingresses
from vipwire_l7.run.app import IngressProcess, Options
from vipwire_l7.run.claim import claim_ingress

pytestmark = [
    pytest.mark.attack,
    pytest.mark.haproxy,
    pytest.mark.skipif(os.geteuid() != 0, reason="a user is changed by root only"),
]
WEB = rule("a.example.com", "/")


def workers(master: int) -> list[int]:
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if parent_of(pid) == master]


def uids(pid: int) -> set[int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next({int(word) for word in line.split()[1:]} for line in lines if line.startswith("Uid:"))


def check_confined(here: Daemon) -> None:
    (master,) = here.masters
    found = workers(master)
    assert found
    for worker in found[-1:]:  # an older one may be ending
        assert uids(worker) == {pwd.getpwnam("haproxy").pw_uid}
        assert os.readlink(f"/proc/{worker}/root") == str(here.folder / "run" / "empty")  # noqa: PTH115  # not ours to resolve


async def test_workers_run_as_a_user_of_their_own_in_an_empty_folder_through_all_changes(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()

    async with asyncio.timeout(150), daemon(tmp_path) as here, pod() as port, pod(text="other") as second:
        secret = tls_secret("cert", certificate("a.example.com"))
        tls = [{"hosts": ["a.example.com"], "secretName": "cert"}]
        write(manifests, *objects(port), ingress("web", WEB))
        await here.start("--manifests", str(manifests))
        await here.until_code("a.example.com", 200)
        check_confined(here)
        write(manifests, *objects(second), ingress("web", WEB))  # by the runtime socket

        async def answered_by_the_other() -> bool:
            return (await here.ask("a.example.com"))[1] == "other"

        await here.until(answered_by_the_other)
        exact = rule("a.example.com", "/x", kind="Exact", service="gone")
        write(manifests, *objects(second), secret, ingress("web", WEB, exact, tls=tls))  # by a reload
        await here.until_code("a.example.com", 503, "/x")
        check_confined(here)
        here.log.write_text("")
        await here.kill(signal.SIGKILL)
        await here.start("--manifests", str(manifests))
        write(manifests, *objects(second), ingress("web", WEB, rule("b.example.com", "/")))
        await here.until_code("b.example.com", 200)
        check_confined(here)
        assert await here.kill(signal.SIGTERM) == 0
        assert here.masters == set()


@pytest.mark.parametrize("flag", ["-", "nobody"])
async def test_the_user_is_the_operators_choice(tmp_path: Path, flag: str) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()

    async with asyncio.timeout(150), daemon(tmp_path) as here, pod() as port:
        write(manifests, *objects(port), ingress("web", WEB))
        await here.start("--manifests", str(manifests), "--haproxy-user", flag)
        await here.until_code("a.example.com", 200)
        (master,) = here.masters
        expected = 0 if flag == "-" else pwd.getpwnam(flag).pw_uid
        assert all(uids(worker) == {expected} for worker in workers(master))


async def test_a_user_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with asyncio.timeout(60), daemon(tmp_path) as here:
        await here.start("--manifests", str(tmp_path), "--haproxy-user", "no-such-user")
        assert here.process is not None
        assert await here.process.wait() == 1
        assert "--haproxy-user no-such-user: there is no such user" in here.log.read_text()


BROKEN = ("apiVersion: v1\n\tkind: Service\n", "42\n", "metadata: {name: web}\n", "kind: Service\nkind: Service\n")


async def test_broken_files_keep_the_last_good_objects_and_end_nothing(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()

    async with asyncio.timeout(150), daemon(tmp_path) as here, pod() as port:
        for number, text in enumerate(BROKEN):
            (manifests / f"broken-{number}.yaml").write_text(text)
        write(manifests, *objects(port), ingress("web", WEB))
        await here.start("--manifests", str(manifests))
        await here.until_code("a.example.com", 200)
        for text in BROKEN:
            (manifests / "objects.yaml").write_text(text)
            good = endpoint_slice("b", port, [endpoint("127.0.0.1")])
            host = f"b{BROKEN.index(text)}.example.com"
            write_more(manifests, service("b"), good, ingress("b", rule(host, "/", service="b")))
            await here.until_code(host, 200)
            assert (await here.ask("a.example.com"))[0] == 200
        assert here.process is not None
        assert here.process.returncode is None
        assert "Traceback" not in here.log.read_text()


def write_more(folder: Path, *values: object) -> None:
    (folder / "more.new").write_text(yaml.safe_dump_all(values))
    (folder / "more.new").rename(folder / "more.yaml")


def test_whatever_ends_it_ends_haproxy_too_unless_it_is_to_go_on(tmp_path: Path) -> None:
    """Neither a signal nor an error: the loop itself is ended."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()

    async def scenario(*, leave: bool) -> None:
        here = Daemon(tmp_path)
        layout = Layout(
            str(tmp_path / "run"), f"{tmp_path}/run/haproxy.sock", f"127.0.0.1:{here.http}", "", threads=1
        )
        options = Options(
            tmp_path / "run", layout, manifests=(manifests,), grace=0.2, leave_running=leave, destinations=TRIAL
        )
        with claim_ingress(tmp_path / "run", layout, takeover=False) as claim:
            await at_work(here, options, claim, leave=leave)

    async def at_work(here: Daemon, options: Options, claim: Claim, *, leave: bool) -> None:
        async with asyncio.timeout(100), pod() as port:
            write(manifests, *objects(port), ingress("web", WEB))
            made = IngressProcess(options, Ingresses(options).served)
            running = asyncio.ensure_future(made.run(claim))
            await here.until_code("a.example.com", 200)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert bool(here.masters) is leave
            await made.haproxy.stop(0.2)

    (tmp_path / "run").mkdir()
    asyncio.run(scenario(leave=False))
    asyncio.run(scenario(leave=True))
