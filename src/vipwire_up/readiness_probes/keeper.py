"""Runs one command and kills all that it has started: a program of its own, run by the path of this file.

    python -I -S keeper.py USER GROUP GROUPS COMMAND...      numbers; USER "-" for the current user

The keeper adopts processes that the command leaves behind, also those in new sessions (PR_SET_CHILD_SUBREAPER), and
kills them when the command ends, on SIGTERM, and when its parent dies. It prints `exit CODE`, or `error NUMBER` for a
command that cannot be started. It imports nothing of vipwire, to start fast.
"""

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Iterator

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_HEARD = {signal.SIGCHLD, signal.SIGTERM}


def main() -> None:
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the prctl
        return
    answer, told = os.pipe2(os.O_CLOEXEC)
    folders = os.get_exec_path()  # load the module now: the other user may not be able to read our files
    child = os.fork()
    if child == 0:
        _exec_command(sys.argv[1:4], sys.argv[4:], folders, told)
    os.close(told)
    code = _wait_for_end(child)
    _kill_all_children()
    error = os.read(answer, 16).decode()
    sys.stdout.write(f"error {error}" if error else f"exit {code}")


def _exec_command(who: list[str], command: list[str], folders: list[str], told: int) -> None:
    """Run the command in place of this process; write the errno of a failure."""
    try:
        os.setsid()
        user, group, groups = who
        if user != "-":
            os.setgroups([int(each) for each in groups.split(",") if each])
            os.setgid(int(group))
            os.setuid(int(user))
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        _try_exec(command, folders)
    except OSError as error:
        os.write(told, str(error.errno).encode())
    finally:
        os._exit(127)


def _try_exec(command: list[str], folders: list[str]) -> None:
    failed: OSError = FileNotFoundError(errno.ENOENT, "")
    for folder in [""] if "/" in command[0] else folders:
        try:
            os.execv(os.path.join(folder, command[0]), command)  # noqa: S606, PTH118  # an admin has said so
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failed = error
    raise failed


def _wait_for_end(child: int) -> int:
    """Wait until the command ends, and return its code; or until SIGTERM. Reap adopted processes meanwhile."""
    while True:
        if signal.sigwait(_HEARD) == signal.SIGTERM:
            return -signal.SIGTERM
        for pid, status in _reap_children():
            if pid == child:
                return os.waitstatus_to_exitcode(status)


def _reap_children() -> Iterator[tuple[int, int]]:
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found
    except ChildProcessError:
        return


def _kill_all_children() -> None:
    """Kill children until there are none: the children of a killed one become ours."""
    while True:
        for pid in _list_children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # another user's process, which the kernel does not let us kill
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _list_children() -> Iterator[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123  # as above
            found = file.read().split()
    except OSError:  # the kernel lacks /proc/PID/task/TID/children
        found = [name for name in os.listdir("/proc") if name.isdigit() and _parent_of(name) == os.getpid()]  # noqa: PTH208
    yield from map(int, found)


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


if __name__ == "__main__":
    main()
