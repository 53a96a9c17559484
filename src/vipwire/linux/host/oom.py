"""Sets how willing the kernel is to kill this process when memory runs out: `--oom-score-adj`."""

import errno
from pathlib import Path

from vipwire.linux.host.obstacle import Obstacle


def set_oom_score_adj(value: int, proc: Path = Path("/proc")) -> Obstacle | None:
    """Set the score of this process, from -1000 (never) to 1000 (first); say so if the kernel refuses (proc(5)).

    A score that it has already, such as one that systemd has given it, takes no right.
    """
    file = proc / "self/oom_score_adj"
    try:
        if file.read_text(encoding="ascii").strip() != str(value):
            file.write_text(f"{value}\n", encoding="ascii")
    except OSError as error:
        return Obstacle(f"oom_score_adj {value}", f"cannot be set ({error.strerror})", _remedy(error.errno or 0))
    return None


def _remedy(code: int) -> str:
    if code in (errno.EACCES, errno.EPERM):
        return (
            "a lower score needs the capability CAP_SYS_RESOURCE: run privileged, or leave it with --oom-score-adj=0"
        )
    if code == errno.EINVAL:
        return "allowed are -1000 to 1000"
    return "vipwire runs on with the score it has"
