"""Names this API server among those that share a store: by its data directory, which one process has at a time.

A server that was killed and is started again in its place (nodes/name_claim.py) is the same to the others. So it
need not wait until the Lease of its former process is over, and they do not take it for gone meanwhile.
"""

import re
import uuid
from pathlib import Path
from typing import Final

from vipwire.file_io.files import write_private
from vipwire.logging import log
from vipwire_up.nodes.name_claim import identity_here

FILE: Final = "server-id"
_FORM: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def server_identity(folder: Path, node: str) -> str:
    """Return what a data directory's server is called; a directory without a name is given one."""
    path = folder / FILE
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if not _FORM.fullmatch(found):
        found = str(uuid.uuid4())
        try:
            write_private(path, f"{found}\n".encode())
        except OSError as error:  # it serves as well under a name that its next start does not know
            log.warning("cannot write the name of this server", file=path, error=error)
    return identity_here(node, found.encode())
