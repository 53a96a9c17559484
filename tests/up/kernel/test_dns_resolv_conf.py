"""resolv.conf changes while DNS is served: questions reach the servers that it names at the time."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network
from tests.up.unit.dns_process import LONG, running

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
NAME = "web.shop.svc.upstream.test"
SERVICE = """{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop},
 spec: {clusterIP: 10.96.0.%s, ports: [{port: 80}]}}"""
FIRST, SECOND = "nameserver 127.0.0.11\n", "search test\nnameserver 127.0.0.12\n"


@pytest.fixture
def _two_upstream(tmp_path: Path) -> Iterator[None]:
    """Run two name servers in a network of the test; one says that NAME is 10.96.0.11, the other 10.96.0.12."""
    with own_network(), ExitStack() as running_ones:
        for number in ("11", "12"):
            (file := tmp_path / f"{number}.yaml").write_text(SERVICE % number)
            flags = ("--cluster-domain", "upstream.test", "--resolv-conf", "", "--bind-address", f"127.0.0.{number}")
            command = [sys.executable, "-m", "vipwire", "dns", "--manifests", str(file), *flags]
            process = running_ones.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            running_ones.callback(process.terminate)
        for number in ("11", "12"):
            until(f"10.96.0.{number}", 53, f"127.0.0.{number}")
        yield


def until(wanted: str, port: int, server: str = "127.0.0.1") -> None:
    """Ask until the answer has these words."""
    command = ("dig", "+tries=1", "+time=2", f"@{server}", "-p", str(port), NAME)
    end = time.monotonic() + LONG
    while wanted not in (told := subprocess.run(command, capture_output=True, text=True, check=False).stdout):
        assert time.monotonic() < end, told
        time.sleep(0.05)


@pytest.mark.usefixtures("_two_upstream")
def test_dns_follows_a_file_that_comes_changes_is_replaced_and_emptied(tmp_path: Path) -> None:
    file, target = tmp_path / "resolv.conf", tmp_path / "run" / "stub.conf"
    (objects := tmp_path / "objects").mkdir()
    (objects / "none.yaml").write_text("")
    with running(objects, "--resolv-conf", str(file)) as server:
        until("status: REFUSED", server.port)
        file.write_text(FIRST)
        until("10.96.0.11", server.port)
        file.write_text("nameserver somewhere\n")  # nobody can use that: the first one is asked on
        server.wait_for("cannot use this resolv.conf")
        until("10.96.0.11", server.port)
        (tmp_path / "new").write_text(SECOND)
        (tmp_path / "new").replace(file)
        until("10.96.0.12", server.port)
        file.write_text("")
        until("status: REFUSED", server.port)
        file.unlink()
        file.symlink_to(target)
        target.parent.mkdir()
        target.write_text(FIRST)
        until("10.96.0.11", server.port)
        target.write_text(SECOND)
        until("10.96.0.12", server.port)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(LONG)
        told = [line for line in server.lines.queue if "for other names" in line]
        first, second = ["127.0.0.11:53"], ["127.0.0.12:53"]
        assert [re.findall(r"servers=(\S+)", line) for line in told] == [second, [], first, second]


@pytest.mark.usefixtures("_two_upstream")
def test_an_up_follows_a_file_that_is_mounted_and_written_in_place(tmp_path: Path) -> None:
    """A container's resolv.conf is a mount of a file elsewhere: its folder hears nothing of it."""
    (file := tmp_path / "mounted").write_text(FIRST)
    words = f"mount --bind {file} /etc/resolv.conf && exec {sys.executable} -m vipwire up --no-proxy --secure-port 0"
    command = ["unshare", "-m", "sh", "-c", f"{words} --dns-port 5353 --data-dir {tmp_path}/data"]
    with subprocess.Popen(command, env=os.environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            until("10.96.0.11", 5353)
            file.write_text(SECOND)
            until("10.96.0.12", 5353)
        finally:
            process.terminate()


ASKING = """
import asyncio, sys
from vipwire.model.net import format_address
from vipwire_l7.plan.destinations import Destinations
from vipwire_l7.run.surroundings import DestinationFollower
async def ask():
    follower = DestinationFollower(Destinations(), (), lambda _services: None)
    while sys.stdin.readline():
        found = await follower._query_addresses(sys.argv[1])
        print(*map(format_address, found.addresses if found else ()), flush=True)
asyncio.run(ask())
"""


@pytest.mark.usefixtures("_two_upstream")
def test_an_ingress_asks_the_servers_of_the_moment_for_external_names(tmp_path: Path) -> None:
    (file := tmp_path / "mounted").write_text(FIRST)
    program = f'mount --bind {file} /etc/resolv.conf && exec {sys.executable} -c "$0" {NAME}'
    command = ["unshare", "-m", "sh", "-c", program, ASKING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for content, number in ((FIRST, 11), (SECOND, 12), ("", 12), (FIRST, 11)):
            file.write_text(content)
            process.stdin.write("\n")
            assert process.stdout.readline() == f"10.96.0.{number}\n"
        process.stdin.close()
