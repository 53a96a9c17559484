"""What the documents say about files, commands, flags, names and limits is so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from scripts import annotations, configuration, metrics, modes

from vipwire.cli.main import main
from vipwire.config.flags import FLAGS
from vipwire.model.net import Address, Family, Prefix
from vipwire.modes.nftables.table.skeleton import build_node_objects, declare_sets
from vipwire.plan.node import NodePlan, PodPrefixes
from vipwire.proxy_daemon.serve.health import ProxyHealth
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.pages import ProxyInfo, build_health_pages, build_metrics_pages

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TEXTS = {path: path.read_text() for path in DOCUMENTS}
NFTABLES = (ROOT / "docs/modes/nftables.md").read_text()


def words_of_commands(text: str) -> Iterator[list[str]]:
    """Yield what is typed in examples and code: the words after `vipwire`."""
    for line in re.findall(r"^[$#] (vipwire .*)$", text, re.MULTILINE) + re.findall(r"`(vipwire [^`]*)`", text):
        yield line.split()[1:]


def chains() -> set[str]:
    everything = Prefix(Address(bytes(4)), 0)
    node = NodePlan(Family.IPV4, "n", pod_traffic=PodPrefixes((everything,)), node_port_addresses=(everything,))
    return {key[1].decode() for key in build_node_objects(node)} - {spec.name for spec in declare_sets(Family.IPV4)}


def test_every_link_leads_somewhere() -> None:
    links = [(page, link) for page, text in TEXTS.items() for link in re.findall(r"\]\(([^)]+)\)", text)]
    inner = [(page, link) for page, link in links if not link.startswith(("https://", "#"))]
    assert inner
    assert [pair for pair in inner if not (pair[0].parent / pair[1].partition("#")[0]).exists()] == []


def test_every_command_of_vipwire_exists() -> None:
    for text in TEXTS.values():
        for words in words_of_commands(text):
            assert unknown_words(words) == [], f"vipwire {' '.join(words)}"


def unknown_words(words: list[str]) -> list[str]:
    """Name the subcommand, or the flags of the proxy, that vipwire does not have."""
    command: click.Command | None = main
    rest = iter(words)
    while isinstance(command, click.Group) and (word := next(rest, "-")) and not word.startswith("-"):
        with click.Context(command) as context:
            command = command.get_command(context, word)
        if command is None:
            return [word]
    if command is None or command.name not in ("proxy", "cleanup"):
        return []
    flags = [word.lstrip("-").partition("=")[0] for word in words if word.startswith("-")]
    return [flag for flag in flags if flag not in FLAGS and (command.name, flag) != ("cleanup", "all")]


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = "\n".join(TEXTS.values())
    assert {*re.findall(r"`make ([a-z]+)`", told), *re.findall(r"^\$ make ([a-z]+)$", told, re.MULTILINE)} <= targets


def test_the_folders_of_the_map_are_there_and_all_of_them() -> None:
    design = (ROOT / "DESIGN.md").read_text()
    named = set(re.findall(r"^  ([a-z_]+)/ ", design, re.MULTILINE))
    there = {path.name for path in (ROOT / "src/vipwire").iterdir() if (path / "__init__.py").exists()}
    assert named == there
    assert len(design.splitlines()) <= 170


def test_every_map_set_and_chain_is_described() -> None:
    described = set(re.findall(r"`([a-z-]+)`", NFTABLES))
    assert {spec.name for spec in declare_sets(Family.IPV4)} <= described
    assert chains() <= described


def test_the_way_of_a_packet_names_no_chain_that_is_not_there() -> None:
    diagrams = re.findall(r"```text\n(.*?)```", (ROOT / "docs/packet-path.md").read_text(), re.DOTALL)
    named = set(re.findall(r"(?:─▶|input|-1[01]0|  0|100) +([a-z]+-[a-z-]+)(?![a-z-]*\d)", "\n".join(diagrams)))
    assert named
    assert {name for name in named if not re.search(r"-(pick|affinity)-$", name)} <= chains()


@pytest.mark.parametrize("page", [configuration, annotations, modes, metrics], ids=lambda page: page.PATH.stem)
def test_a_generated_page_is_what_the_code_makes(page: Any) -> None:
    assert page.PATH.read_text() == page.document(), "run `make docs`"


def test_every_page_of_a_proxy_is_described() -> None:
    told = metrics.PATH.read_text()
    numbers, health = Metrics("nftables"), ProxyHealth((Family.IPV4,), (), 30.0)
    info = ProxyInfo("nftables", "", {}, {}, 0.0, profiling=True, set_verbosity=lambda _: None)
    for app in (build_health_pages(health, numbers, lambda: 0.0), build_metrics_pages(numbers, info, lambda: 0.0)):
        for path in app.handlers:
            assert f"{path}`" in told or f"{path}?" in told


def test_who_joins_in_is_told_of_files_that_exist_and_checks_run_what_make_runs() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"[ `]((?:tests|src|bench|scripts)/[\w/.]+)", told)
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / path).exists()] == []
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yaml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": ".ci/run"}
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make lint"]
