"""The script that does the walk of docs/three-servers.md reads the page as a person does."""

import subprocess
from dataclasses import dataclass, field
from typing import Any

from scripts.three_servers import PAGE, Walk, blocks
from tests.examples.blocks import commands_of

JOIN = "vipwire join https://10.0.0.1:6443 --token abcdef.0123456789abcdef --ca-hash sha256:00 --server"
INSTALLED_ALREADY = ("apt install",)


@dataclass
class Recorded:
    """A machine that does nothing, and keeps what it was told."""

    name: str
    address: str
    told: list[str] = field(default_factory=list)

    def shell(self, script: str, **_: str) -> "subprocess.CompletedProcess[str]":
        self.told.append(script)
        said = f"{JOIN}\n" if "token create" in script else "a Ready \nb Ready \nc Ready \n"
        return subprocess.CompletedProcess(script, 0, stdout=said, stderr="")

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.shell(" ".join(words))

    def write(self, path: str, text: str) -> None:
        self.told.append(f"{path}\n{text}")


def walked() -> list[Recorded]:
    """Do the walk; give the machines, and last the client."""
    hosts: Any = [Recorded(name, f"10.0.0.{number}") for number, name in enumerate("abc", 1)]
    client: Any = Recorded("client", "10.0.0.100")
    Walk(hosts, client).go()
    return [*hosts, client]


def test_the_walk_types_every_command_of_the_page() -> None:
    lines = [line for each in blocks(PAGE.read_text(encoding="utf-8")) for line in each.commands().splitlines()]
    join = next(line for line in lines if line.startswith("vipwire join"))
    typed = "\n".join(each for host in walked() for each in host.told).replace(JOIN, join)
    left_out = [
        line
        for example in commands_of(PAGE)
        for line in example.command.splitlines()
        if line not in typed and not line.startswith(INSTALLED_ALREADY)
    ]
    assert left_out == []


def test_the_files_of_the_page_are_written_on_every_machine() -> None:
    ini = [each.text for each in blocks(PAGE.read_text(encoding="utf-8")) if each.language == "ini"]
    for host in walked()[:3]:
        written = "\n".join(host.told)
        assert f"ETCD_NAME={host.name}" in written
        assert f"ETCD_INITIAL_ADVERTISE_PEER_URLS=http://{host.address}:2380" in written
        assert ini[1] in written
