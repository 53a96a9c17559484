"""Finds out whether HAProxy has this machine's own authorities (`@system-ca`).

Without any it refuses a whole configuration that names them, so what asks for them must be refused instead.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

_NAMES_THEM = """
listen asks
    mode tcp
    timeout connect 1s
    timeout client 1s
    timeout server 1s
    bind 127.0.0.1:1
    server s1 127.0.0.1:1 ssl verify required ca-file @system-ca verifyhost localhost
"""


def has_system_authorities(program: str) -> bool:
    """Report whether a HAProxy takes a configuration that names them. One that is not there is told of later."""
    found = shutil.which(program)
    if found is None:
        return True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(_NAMES_THEM)
        done = subprocess.run([found, "-c", "-f", str(file)], capture_output=True, check=False)  # noqa: S603  # found by PATH
    return done.returncode == 0
