"""Finds out whether HAProxy finds the system's CA certificates (`@system-ca`).

Without any, HAProxy refuses a whole configuration that names them, so the planner must refuse the policy instead.
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
    """Report whether HAProxy accepts a configuration with `@system-ca`.

    If the program is missing, its start reports that.
    """
    found = shutil.which(program)
    if found is None:
        return True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(_NAMES_THEM)
        done = subprocess.run([found, "-c", "-f", str(file)], capture_output=True, check=False)  # noqa: S603  # found by PATH
    return done.returncode == 0
