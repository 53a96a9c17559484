"""Runs one command and ends with all that it has started: a program of its own, by the path of this file.

    python -I -S keeper.py USER GROUP GROUPS COMMAND...      numbers; USER "-" for the user that it is run as

It adopts what the command leaves behind, also from sessions of their own (PR_SET_CHILD_SUBREAPER), and kills it when
the command ends, on SIGTERM, and when its parent dies. It prints `exit CODE`, or `error NUMBER` for a command that
cannot be started. Nothing of vipwire is imported: it has to start fast.
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
    """Run the command of this program's arguments."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it has died meanwhile
        return
    answer, told = os.pipe2(os.O_CLOEXEC)
    folders = os.get_exec_path()  # what the child needs is loaded here: another user may not read our files
    child = os.fork()
    if child == 0:
        _become(sys.argv[1:4], sys.argv[4:], folders, told)
    os.close(told)
    code = _wait(child)
    _end_all()
    error = os.read(answer, 16).decode()
    sys.stdout.write(f"error {error}" if error else f"exit {code}")


def _become(who: list[str], command: list[str], folders: list[str], told: int) -> None:
    """Run the command in place of this process; tell the number of the error that prevents it."""
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
        _exec(command, folders)
    except OSError as error:
        os.write(told, str(error.errno).encode())
    finally:
        os._exit(127)


def _exec(command: list[str], folders: list[str]) -> None:
    """Run a command from the first folder that has it."""
    failed: OSError = FileNotFoundError(errno.ENOENT, "")
    for folder in [""] if "/" in command[0] else folders:
        try:
            os.execv(os.path.join(folder, command[0]), command)  # noqa: S606, PTH118  # an admin has said so
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failed = error
    raise failed


def _wait(child: int) -> int:
    """Wait until the command has ended, and give its code; or until SIGTERM. Reap what comes to us meanwhile."""
    while True:
        if signal.sigwait(_HEARD) == signal.SIGTERM:
            return -signal.SIGTERM
        for pid, status in _reaped():
            if pid == child:
                return os.waitstatus_to_exitcode(status)


def _reaped() -> Iterator[tuple[int, int]]:
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found
    except ChildProcessError:
        return


def _end_all() -> None:
    """Kill our children until there are none: the children of one that ends become ours."""
    while True:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has another user's rights, which the kernel does not let us end
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123  # as above
            found = file.read().split()
    except OSError:  # a kernel without this list
        found = [name for name in os.listdir("/proc") if name.isdigit() and _parent(name) == os.getpid()]  # noqa: PTH208
    yield from map(int, found)


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


if __name__ == "__main__":
    main()
