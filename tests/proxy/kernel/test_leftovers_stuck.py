"""Rules of another mode that cannot be removed, in either engine: the proxy is not ready and names them."""

import json
import shutil
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import NODE, Daemon, page, prepare, stage
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel
RULES = """*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-LOLE4ISW44XBNF3G - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.9/32 -j KUBE-SVC-LOLE4ISW44XBNF3G
COMMIT
"""


def without(variant: str) -> tuple[str, ...]:
    """Make a command that runs another where the programs of a variant are not executable."""
    program = Path(shutil.which(f"iptables-{variant}") or "").resolve()
    return ("unshare", "--mount", "sh", "-ec", f'mount --bind /dev/null {program}; exec "$@"', "enter")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
async def test_without_the_program_the_proxy_is_not_ready_and_cleanup_says_what_stays(variant: str) -> None:
    server = FakeApiServer()
    prepare(server)
    with stage():
        run(f"iptables-{variant}-restore --noflush", RULES)
        async with server:
            flags = (f"--master={server.url}", f"--hostname-override={NODE}", "--proxy-mode=nftables")
            async with Daemon(*flags, within=without(variant)) as daemon:
                stuck = await daemon.heard("cannot remove another mode's rules; trying again")
                status, text = await page("/readyz", 10256)
                assert await daemon.terminate() == 0
        expected = f"chains of iptables-{variant} stay: iptables-{variant} is not installed"
        assert (stuck["left_by"], stuck["what"]) == ("iptables", expected)
        assert (status, json.loads(text)["waiting"]) == (503, [f"rules of another mode: {expected}"])
        async with Daemon("--cleanup", within=without(variant)) as cleanup:
            assert await cleanup.ended() == 1
            assert [each["what"] for each in cleanup.said("left")] == [expected]
        assert "KUBE-SERVICES" in run(f"iptables-{variant}-save")
        async with Daemon("--cleanup") as cleanup:
            assert await cleanup.ended() == 0
        assert "KUBE-" not in run(f"iptables-{variant}-save")
