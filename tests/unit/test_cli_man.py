"""Manual pages: of every command, with every flag, and nothing that groff or mandoc stumbles over."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from vipwire.cli.main import main
from vipwire.cli.man import SECTION, all_pages
from vipwire.config.flags.table import FLAGS


@pytest.fixture(scope="module")
def pages() -> dict[tuple[str, ...], str]:
    return dict(all_pages(main))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = CliRunner().invoke(main, ["man", "--to", str(tmp_path / "man8")])
    assert (result.exit_code, result.output) == (0, "")
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


def test_one_page_is_printed(pages: dict[tuple[str, ...], str]) -> None:
    assert CliRunner().invoke(main, ["man", "lab", "up"]).output == pages["lab", "up"]
    assert CliRunner().invoke(main, ["man"]).output == pages[()]


def test_a_page_of_no_command_is_refused() -> None:
    result = CliRunner().invoke(main, ["man", "prox"])
    assert result.exit_code == 2
    assert "there is no command 'prox'; there are: " in result.output


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["man", "--to", str(tmp_path / "file" / "below")])
    assert result.exit_code == 1
    assert "cannot write the manual pages: Not a directory\n" in result.output


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
