"""A large run is written without its text being in memory as a whole; the tool writes what the kernel refuses."""

import errno
import os
import tracemalloc
from collections.abc import Iterable

import pytest
from tests.fakes.iptables import FakeTables, FakeTool

from vipwire.model.net import Family
from vipwire.modes.iptables.access.nft_access import NftAccess
from vipwire.modes.iptables.access.tool_access import Known, LockWait, ToolAccess, Written
from vipwire.modes.iptables.rules.names import NAT
from vipwire.modes.iptables.rules.script import RestoreInput, TablePart


class Measuring(FakeTool):
    """Takes a text and keeps its length only."""

    size = 0

    def restore(self, text: Iterable[str], wait: int = 5) -> None:
        """Add up."""
        del wait
        self.size = sum(map(len, text))


def test_the_text_of_a_run_is_never_whole() -> None:
    rules = ("-p tcp -m tcp -j DNAT --to-destination 10.244.0.1:8080", "-j KUBE-MARK-MASQ")
    run = RestoreInput({NAT: TablePart({f"KUBE-SEP-{number:016}": rules for number in range(10_000)})})
    tool = Measuring(FakeTables())
    whole = len(run.text)
    tracemalloc.start()
    written = ToolAccess(tool, LockWait(), 0).write(run)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert written == Written(whole, 1)
    assert (tool.size, whole > 1_500_000) == (whole, True)
    assert peak < whole / 4


def test_where_nothing_of_kubernetes_is_nobody_works_out_what_there_should_be() -> None:
    asked: list[str] = []

    def known() -> Known:
        asked.append("what should there be?")
        return {}

    tables = FakeTables()
    access = ToolAccess(FakeTool(tables), LockWait(), 0)
    access.read(known)
    assert not asked
    FakeTool(tables).restore("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n")
    assert access.read(known)[NAT]["KUBE-SERVICES"] == ["-j RETURN"]
    assert asked


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOMEM, errno.EEXIST, errno.EOPNOTSUPP])
def test_the_tool_writes_for_good_only_if_the_kernel_lacks_a_part(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: NftAccess, _run: RestoreInput) -> Written:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(NftAccess, "send_transaction", refuse)
    tables = FakeTables()
    access = NftAccess(Family.IPV4, ToolAccess(FakeTool(tables), LockWait(), 0), 0)
    access.write(RestoreInput({NAT: TablePart({"KUBE-SERVICES": ("-j RETURN",)})}))
    assert "KUBE-SERVICES" in ToolAccess(FakeTool(tables), LockWait(), 0).read(dict)[NAT]
    assert access.direct is (code != errno.EOPNOTSUPP)
    access.close()
