"""Says of every example in the documents how it is tested: run in a stage, or only parsed; or that nobody here can.

What is not run is asked of its program's own parser (`tests.examples.accepted`). Programs that need what no test has
are listed with the reason. An example that is nowhere here fails the suite.
"""

from collections.abc import Mapping
from typing import Final

UNASKED: Final[Mapping[str, str]] = {
    "apt": "installs into the machine",
    "apt-get": "installs into the machine",
    "aws": "needs an account",
    "az": "needs an account",
    "curl": "asks a server that only the reader has",
    "dig": "asks a server that only the reader has",
    "grep": "reads what another program has said",
    "hostname": "the reader's machine",
    "install": "changes the machine's files; the unit files have tests of their own",
    "ipvsadm": "needs IPVS; the tests in the guest read what it lists",
    "kind": "needs a container engine and its images",
    "kubeadm": "makes a cluster",
    "mkdir": "changes the machine's files",
    "modprobe": "changes the machine's kernel",
    "nft": "changes a node's rules; the tests of drift do the same",
    "openssl": "the reader's certificate",
    "pip": "the wheel's test installs it",
    "podman": "needs images; `python -m scripts.images` builds and runs them",
    "python3": "makes an environment, or a server for the walk",
    "setup": "the script installs what it names; its arguments have a test",
    "systemctl": "needs systemd; the package's test installs the units",
    "vi": "an editor",
}
"""Programs that are neither run nor asked, and why."""

NO_PROGRAM: Final = frozenset({"cd", "cat", "do", "done", "echo", "export", "for"})
"""Words of the shell: `bash -n` reads them."""
