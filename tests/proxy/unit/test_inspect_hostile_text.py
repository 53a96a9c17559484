"""Objects whose texts would move a cursor, colour a line or forge one: no command prints them as they are."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.proxy.unit.inspected import PODS

from vipwire.cli.main import main
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.namespaces.topology import DEFAULT

pytestmark = pytest.mark.attack

ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
HOSTILE = "evil\x1b]0;owned\x07\x1b[2J\nIPv4: as planned\r\x9b31m\u202e"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write hostile text wherever an object has any: names, nodes, annotations, a kind; and a file's name."""
    made = manifests.build_service_with_slices(DEFAULT, "web", ["10.96.0.10"], [Port(80, 8080)], [PODS["pod-1a"]])
    made[0]["metadata"]["annotations"] = {"vipwire.io/algorithm": HOSTILE, HOSTILE: HOSTILE}
    for each in made[1:]:
        for endpoint in each["endpoints"]:
            endpoint["nodeName"] = HOSTILE
    named = manifests.build_service_with_slices(DEFAULT, HOSTILE, ["10.96.0.11"], [Port(80)], [])
    other = {"apiVersion": "v1", "kind": HOSTILE, "metadata": {"name": HOSTILE}}
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "all.yaml").write_text("---\n".join(json.dumps(each) + "\n" for each in [*made, *named, other]))
    (folder / "bad\x1b[2J\n.yaml").write_text("a: [")
    return folder


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml"])
@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "default/web"],
        ["plan"],
        ["diff"],
        ["explain", "--from", "10.244.1.9", "10.96.0.10:80"],
        ["drain", "--list"],
    ],
    ids=" ".join,
)
def test_no_command_prints_it(folder: Path, command: list[str], output: str) -> None:
    flags = [f"--manifests={folder}", "--hostname-override=node-1", f"--state-dir={folder.parent}"]
    result = CliRunner().invoke(main, [*command, *flags, "--nodeport-addresses=primary", "-o", output])
    assert result.exit_code in (0, 1, 2)
    assert not isinstance(result.exception, Exception), result.exception
    assert "evil" in result.output or command[0] in ("diff", "drain", "explain")
    assert not ACTS.search(result.stdout)
    assert not ACTS.search(result.stderr)


def test_nothing_is_forged(folder: Path) -> None:
    flags = [f"--manifests={folder}", "--hostname-override=node-1", f"--state-dir={folder.parent}"]
    result = CliRunner().invoke(main, ["plan", *flags])
    assert not any(line.startswith("IPv4: as planned") for line in result.output.splitlines())
