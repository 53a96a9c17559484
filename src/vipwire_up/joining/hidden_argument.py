"""Overwrites a secret in this process's command line, which every user of the machine can read in /proc/PID/cmdline.

The kernel reads a command line from the memory of its process (`man 5 proc_pid_cmdline`). /proc/self/stat has the
address of that memory, and /proc/self/mem writes there.
"""

import os
from pathlib import Path
from typing import Final

_BEGIN: Final = 45
_END: Final = 46  # arg_start and arg_end of `man 5 proc_pid_stat`, after pid and comm


def hide_argument(secret: str) -> bool:
    """Overwrite an argument, or the part after its =, by x; report whether no argument shows the secret now."""
    wanted = os.fsencode(secret)

    def shows(word: bytes) -> bool:
        return word == wanted or word.endswith(b"=" + wanted)

    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = int(fields[_BEGIN]), int(fields[_END])
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            at = begin
            for word in os.pread(memory, end - begin, begin).split(b"\0"):
                at += len(word) + 1
                if shows(word):
                    os.pwrite(memory, b"x" * len(wanted), at - 1 - len(wanted))
        finally:
            os.close(memory)
        return not any(map(shows, Path("/proc/self/cmdline").read_bytes().split(b"\0")))
    except (OSError, LookupError, ValueError):
        return False
