"""The table of questions and answers, with dig against `vipwire dns`, over UDP and TCP."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.up.unit.dns_process import Server, running

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


class Row(NamedTuple):
    name: str
    type: str
    status: str
    records: list[str]


def table() -> list[Row]:
    rows = []
    for line in (HERE / "dns_questions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            question, status, records = line.split("|")
            name, kind = question.split()
            found = sorted(record.strip() for record in records.split(";") if record.strip())
            rows.append(Row(name, kind, status.strip(), found))
    return rows


ROWS = table()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        running(HERE / "dns_upstream.yaml", "--cluster-domain", "example.org", "--resolv-conf", "") as upstream,
        running(HERE / "dns_objects.yaml", "--upstream", f"127.0.0.1:{upstream.port}") as ours,
    ):
        yield ours


def test_the_table_has_a_row_for_every_section_of_the_specification() -> None:
    text = (HERE / "dns_questions.txt").read_text()
    assert set(re.findall(r"^# (\d\.\d)", text, re.MULTILINE)) == {"2.2", "2.3", "2.4", "2.5", "2.6"}
    assert len(ROWS) > 50


@pytest.mark.parametrize("transport", ["+notcp", "+tcp"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}{row.type}")
def test_an_answer_is_that_of_the_specification(server: Server, row: Row, transport: str) -> None:
    told = server.dig(row.name, row.type, transport)
    assert (told.status, sorted(told.answers)) == (row.status, row.records)
    assert {"qr", "rd", "ra"} <= told.flags
    assert "tc" not in told.flags
    in_zone = row.name.lower().endswith(".cluster.local.")
    if row.status in ("NOERROR", "NXDOMAIN") and not row.records and in_zone:
        assert [line.split()[0] for line in told.authority] == ["SOA"], "a denial says for how long it holds"


def test_the_letters_of_a_question_come_back_as_they_were(server: Server) -> None:
    told = server.dig("wEb.sHoP.sVc.ClUsTeR.LoCaL", "A")
    assert told.owners == ("wEb.sHoP.sVc.ClUsTeR.LoCaL.",)


def test_who_wants_no_recursion_gets_the_cname_alone_and_nothing_from_upstream(server: Server) -> None:
    assert server.dig("outside.shop.svc.cluster.local", "A", "+norec").answers == (
        "CNAME site.town.svc.example.org.",
    )
    assert server.dig("example.com", "A", "+norec").status == "REFUSED"


def test_other_classes_other_versions_and_other_operations_are_refused(server: Server) -> None:
    assert server.dig("web.shop.svc.cluster.local", "CH", "A").status == "REFUSED"
    assert server.dig("web.shop.svc.cluster.local", "A", "+edns=1", "+noednsnegotiation").status == "BADVERS"
    assert server.dig("web.shop.svc.cluster.local", "A", "+opcode=STATUS").status == "NOTIMP"


def test_an_answer_without_edns_has_none(server: Server) -> None:
    assert "EDNS" in server.dig("web.shop.svc.cluster.local", "A", "+edns=0").text
    assert "EDNS" not in server.dig("web.shop.svc.cluster.local", "A", "+noedns").text
