"""Manual pages: of every command, with every flag, and nothing that groff or mandoc stumbles over."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from scripts.man import SECTION, all_pages, write_pages

from vipwire.cli.main import main
from vipwire.config.flags import FLAGS


@pytest.fixture(scope="module")
def pages() -> dict[tuple[str, ...], str]:
    return dict(all_pages(main))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pages(tmp_path / "man8")
    return tmp_path / "man8"


def plain(page: str) -> str:
    """Undo what was escaped."""
    return page.replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`").replace("\\e", "\\")


def test_every_command_has_a_page_that_names_it(pages: dict[tuple[str, ...], str]) -> None:
    context = click.Context(main, **main.context_settings)
    assert {path[0] for path in pages if path} == set(main.list_commands(context))
    assert ("lab", "up") in pages
    for path, page in pages.items():
        title = "-".join(("vipwire", *path))
        assert re.match(rf'\.TH "{title.upper()}" "{SECTION}" ', plain(page))
        assert f".SH NAME\n{title} - " in plain(page)


def test_examples_stand_in_lines_of_their_own(pages: dict[tuple[str, ...], str]) -> None:
    page = plain(pages["explain",])
    assert "\n.nf\nvipwire explain --from 10.244.1.5 10.96.0.10:80\n" in page
    assert "\nvipwire explain default/dns:53/udp --flow\n.fi\n" in page


def test_the_page_of_the_proxy_has_every_flag_with_its_meaning(pages: dict[tuple[str, ...], str]) -> None:
    page = plain(pages["proxy",])
    for flag in FLAGS.values():
        assert re.search(rf"^\.B (-\w, )?--?{flag.name}( \S+)?\n{re.escape(flag.help)}", page, re.MULTILINE), (
            flag.name
        )


def test_help_has_both_names_and_a_page_leaves_it_as_it_was(pages: dict[tuple[str, ...], str]) -> None:
    assert ".B -h, --help\n" in plain(pages[()])
    assert "-h, --help" in CliRunner().invoke(main, ["--help"]).output


def test_the_page_of_a_command_has_its_options(pages: dict[tuple[str, ...], str]) -> None:
    status = plain(pages["status",])
    assert ".B -w, --watch\n" in status
    assert ".SH EXIT STATUS" in pages["diff",]


def test_pages_name_pages_that_there_are(pages: dict[tuple[str, ...], str]) -> None:
    titles = {"-".join(("vipwire", *path)) for path in pages}
    for page in pages.values():
        named = re.findall(rf"^\.BR (\S+) \({SECTION}\)", plain(page), re.MULTILINE)
        assert named
        assert set(named) <= titles


def test_the_command_that_printed_pages_is_refused_with_what_to_do() -> None:
    result = CliRunner().invoke(main, ["man", "proxy"])
    assert result.exit_code == 2
    assert "make man" in result.output


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("groff") is None, reason="reads the pages with groff, which is not installed")
def test_groff_reads_all_pages_without_a_warning(folder: Path) -> None:
    for page in folder.iterdir():
        command = ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), page.name
        assert page.stem in done.stdout


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="reads the pages with mandoc, which is not installed")
def test_mandoc_misses_nothing_but_the_date(folder: Path) -> None:
    # A date would be that of the day on which a page was made, and two builds would differ.
    for page in folder.iterdir():
        command = ["mandoc", "-T", "lint", "-W", "warning", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = [line for line in done.stdout.splitlines() if "missing date" not in line]
        assert said == [], page.name
