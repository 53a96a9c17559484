"""Bootstrap tokens: other users read none in /proc or in files, and strangers keep no machine from joining."""

import contextlib
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.up.unit.cluster_process import VIPWIRE, up

from vipwire.cli.main import main

pytestmark = [pytest.mark.attack, pytest.mark.slow]
TOKEN = "abcdef.0123456789abcdef"  # noqa: S105  # no cluster has it
HASH = f"sha256:{'0' * 64}"
KUBECONFIG = """
clusters: [{{name: a, cluster: {{server: "https://127.0.0.1:{port}", insecure-skip-tls-verify: true}}}}]
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
users: [{{name: a, user: {{}}}}]
current-context: a
"""
JOIN = ("join", "https://127.0.0.1:{port}", "--ca-hash", HASH, "--no-proxy", "--data-dir", "data")
WAYS: dict[str, tuple[str, ...]] = {
    "--token TOKEN": (*JOIN, "--token", TOKEN),
    "--token=TOKEN": (*JOIN, f"--token={TOKEN}"),
    "the token twice": (*JOIN, "--token", TOKEN, f"--token={TOKEN}"),
    "--token-file": (*JOIN, "--token-file", "token"),
    "a server": (*JOIN, "--server", "--token", TOKEN),
    "VIPWIRE_TOKEN": JOIN,
    "token delete": ("token", "delete", TOKEN, "--kubeconfig", "kubeconfig"),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_other_user_reads_the_token_while_a_command_runs(tmp_path: Path, way: str) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    environment = os.environ | ({"VIPWIRE_TOKEN": TOKEN} if way == "VIPWIRE_TOKEN" else {})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(port=port))
        command = [*VIPWIRE, *(word.format(port=port) for word in WAYS[way])]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
            silent.settimeout(60)
            with silent.accept()[0]:  # the command has begun, and waits for an answer
                seen = read_as_nobody(f"/proc/{process.pid}/cmdline")
                hidden = read_as_nobody(f"/proc/{process.pid}/environ")
                process.terminate()
    assert f"127.0.0.1:{port}" in seen or "kubeconfig" in seen
    assert TOKEN not in seen
    assert TOKEN not in hidden
    assert TOKEN.partition(".")[2] not in seen


def read_as_nobody(path: str) -> str:
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "cat", path]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Run a cluster; give its port, a token for a server, and the hash of the authority."""
    with up(folder):
        command = [*VIPWIRE, "token", "create", "--server", "--data-dir", str(folder)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        token = re.search(r"--token (\S+) --ca-hash (\S+)", said)
        port = re.search(r"server: https://127\.0\.0\.1:(\d+)", (folder / "admin.kubeconfig").read_text())
        assert token
        assert port
        yield int(port[1]), token[1], token[2]


def become_server(port: int, pinned: str, *more: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [*VIPWIRE, "join", f"https://127.0.0.1:{port}", "--ca-hash", pinned, "--server", *more]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)


def test_a_token_comes_from_a_file_or_from_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with cluster(tmp_path / "up") as (port, token, pinned):
        file.write_text(f"{token}\n")
        for mode, warnings in ((0o600, 0), (0o644, 1)):
            file.chmod(mode)
            folder = tmp_path / f"{mode:o}"
            done = become_server(port, pinned, "--token-file", str(file), "--data-dir", str(folder))
            assert (done.returncode, len(done.stderr.splitlines())) == (0, warnings)
            assert str(file) in done.stderr or not warnings
            assert (folder / "pki/ca.key").read_bytes() == (tmp_path / "up/pki/ca.key").read_bytes()
        folder = tmp_path / "pipe"
        done = become_server(port, pinned, "--token-file", "/dev/stdin", "--data-dir", str(folder), stdin=token)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "more"), [(None, ()), ("", ()), ("\n", ()), ("é", ()), (TOKEN, ("--token", TOKEN))]
)
def test_a_file_without_a_token_is_a_wrong_command_line(
    tmp_path: Path, content: str | None, more: tuple[str, ...]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    command = ["join", "https://127.0.0.1:1", "--ca-hash", HASH, "--no-proxy", "--token-file", str(file), *more]
    done = CliRunner().invoke(main, [*command, "--data-dir", str(tmp_path / "data")])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr


def test_files_of_flags_are_their_owners_and_loose_ones_are_told(tmp_path: Path) -> None:
    command = ["install", "systemd", "join", "up", "--root", str(tmp_path)]
    before = os.umask(0)
    try:
        assert CliRunner().invoke(main, command).stderr == ""
    finally:
        os.umask(before)
    files = [tmp_path / f"etc/vipwire/{name}.env" for name in ("join", "up")]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    files[0].chmod(0o644)
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0
    assert [str(files[0]) in line for line in done.stderr.splitlines()] == [True]


def join(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `vipwire join` to its end."""
    command = [*VIPWIRE, "join", *words, "--data-dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def served(folder: Path, *words: str, until: str = "joined as Node n2") -> str:
    """Run `vipwire join` until it says something, and end it; return what it said."""
    command = [*VIPWIRE, "join", *words, "--no-proxy", "--data-dir", str(folder), "--node-name", "n2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        while until not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.terminate()
        process.stdout.read()
    return said


def test_a_machine_that_has_joined_uses_the_flags_or_refuses_them(tmp_path: Path) -> None:
    folder = tmp_path / "n2"
    with cluster(tmp_path / "up") as (port, token, pinned):
        known = f"https://127.0.0.1:{port}"
        served(folder, known, "--token", token, "--ca-hash", pinned)
        for status, why, words in (
            (2, "--ca-hash: this machine belongs to a cluster with another authority, sha256:", ("--ca-hash", HASH)),
            (1, "https://127.0.0.1:1: GET authority: ", ("https://127.0.0.1:1", "--ca-hash", pinned)),
            (2, "--node-name n3: this machine is Node n2", ("--node-name", "n3")),
            (1, "pki/ca.crt: belongs to another cluster", (known, "--server", "--token", token, "--ca-hash", HASH)),
            (2, "--announce-interface: set this flag for `vipwire up`", ("--server", "--announce-interface", "lo")),
        ):
            done = join(folder, *words, *(() if "--server" in words else ("--no-proxy",)))
            assert (done.returncode, why in done.stderr) == (status, True), (words, done.stderr)
        said = served(folder, f"https://localhost:{port}", "--token", token, "--ca-hash", pinned)
        assert "this machine is already Node n2: ignoring the token" in said
        assert f"forwards to https://localhost:{port}, " in said
        assert f"https://localhost:{port}" in served(folder)  # it is kept
    assert "Connection refused" in served(folder, until="no known API server answers")


STRANGERS = (
    (b"POST /vipwire.io/v1/certificates HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{", b"403"),
    (b"POST /vipwire.io/v1/departures HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", b"403"),
    (b"POST /vipwire.io/v1/servers HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"404"),
    (b"GET /vipwire.io/v1/servers HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"403"),
    (b"GET /vipwire.io/v1/authority HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"200"),
    (b"PUT /vipwire.io/v1/certificates HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"404"),
    (
        b"POST /vipwire.io/v1/certificates HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        b"403",
    ),
    (
        b"POST /vipwire.io/v1/certificates HTTP/1.1\r\nHost: x\r\nAuthorization: x\r\nContent-Length: 9\r\n\r\n",
        b"401",
    ),
)


def test_a_strangers_body_is_not_waited_for_and_keeps_no_machine_from_joining(tmp_path: Path) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with cluster(tmp_path / "up") as (port, token, pinned), contextlib.ExitStack() as stack:
        for number in range(120):
            said, status = STRANGERS[0 if number >= 16 else number % len(STRANGERS)]
            made = socket.create_connection(("127.0.0.1", port), 30, source_address=("127.0.0.2", 0))
            stranger = stack.enter_context(context.wrap_socket(stack.enter_context(made)))
            stranger.sendall(said)
            assert stranger.recv(12) == b"HTTP/1.1 %b" % status, said
        file = tmp_path / "token"
        file.touch(mode=0o600)
        file.write_text(token)
        done = become_server(port, pinned, "--token-file", str(file), "--data-dir", str(tmp_path / "there"))
        assert (done.returncode, done.stderr) == (0, "")
