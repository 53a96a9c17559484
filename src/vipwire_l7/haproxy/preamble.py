"""Writes the start of a configuration: the sections `global` and `defaults`."""

from collections.abc import Iterator

from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.mirrors import MIRROR_FILE
from vipwire_l7.haproxy.words import line, write_plain, write_quoted


def process_text(layout: Layout, mark: str, *, mirrors: bool = False) -> str:
    """Write `global` and `defaults`. `mark` identifies the configuration in `show info`."""
    # HAProxy 2.6 crashes when filters of several threads share one Lua state, as with `lua-load`.
    lua = [line("lua-load-per-thread {}", write_quoted(layout.certificate_file(MIRROR_FILE)))] if mirrors else []
    return "\n".join([*_global(layout, mark), *lua, *_defaults()]) + "\n"


def _global(layout: Layout, mark: str) -> Iterator[str]:
    yield "global"
    yield line("description {}", write_plain(mark))
    yield line("stats socket {} mode 600 level admin expose-fd listeners", write_quoted(layout.socket))
    yield line("stats timeout 1m")
    yield line("hard-stop-after 30m")
    yield line("ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets")
    yield line("ssl-server-verify none")
    yield line("tune.ssl.default-dh-param 2048")
    yield line("tune.http.logurilen 4096")
    if layout.user:
        yield line("user {}", write_plain(layout.user))
        yield line("group {}", write_plain(layout.group))
    if layout.chroot:
        yield line("chroot {}", write_quoted(layout.chroot))
    if layout.threads:
        yield line("nbthread {}", write_plain(layout.threads))
    if layout.connections:
        yield line("maxconn {}", write_plain(layout.connections))
    if layout.access_log == "stdout":
        yield line("log stdout format raw local0 info")
    elif layout.access_log:
        yield line("log {} format raw local0 info", write_plain(layout.access_log))


def _defaults() -> Iterator[str]:
    yield "defaults"
    yield line("mode http")
    # HAProxy repeats an idempotent request if its server is gone.
    yield line("retries 3")
    yield line("option redispatch 1")
    yield line("retry-on conn-failure empty-response")
    # When a worker is replaced, it must not close a client's idle connection while a request is on its way.
    yield line("option idle-close-on-response")
    yield line("option http-keep-alive")
    # Two seconds allow for one SYN retransmission. Then HAProxy tries another server.
    for name, value in (("connect", "2s"), ("client", "60s"), ("server", "60s"), ("queue", "30s")):
        yield line(f"timeout {name} {value}")
    for name, value in (("http-request", "10s"), ("http-keep-alive", "60s"), ("tunnel", "1h"), ("check", "5s")):
        yield line(f"timeout {name} {value}")
