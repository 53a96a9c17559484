"""The identity of this API server among those that share a store: by its data directory, which one process holds.

A server that replaces a killed one in its place (nodes/name_claim.py) has the same identity. So it need not wait
until the Lease of its former process expires, and the others do not take it for gone.
"""

import re
import uuid
from pathlib import Path
from typing import Final

from vipwire.file_io.private_files import write_private
from vipwire.logging import log
from vipwire_up.nodes.name_claim import identity_here

FILE: Final = "server-id"
_FORM: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def server_identity(folder: Path, node: str) -> str:
    """Return the identity of a data directory's server; create one if missing."""
    path = folder / FILE
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if not _FORM.fullmatch(found):
        found = str(uuid.uuid4())
        try:
            write_private(path, f"{found}\n".encode())
        except OSError as error:  # the server also works with an identity that its next start does not know
            log.warning("cannot write the name of this server", file=path, error=error)
    return identity_here(node, found.encode())
