"""Spellings of a guarded path that a proxy might take for an open one, and honest clients' requests."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

Exchange = Callable[[int, str], Coroutine[Any, Any, tuple[int, Any]]]

SLASHES = (
    *("/", "//", "///", "/./", "/%2e/", "%2f", "%2F", "/%2f", "%2f/", "\\", "%5c", "/%5C", "%252f", "%25252f"),
    *("%c0%af", "%e0%80%af", "%ef%bc%8f", "%u2215", "/;/", "/;a=b/", "/.;/", "%3b/", "%00/", "%09/", "%0a/", "%20/"),
)
DOTS = (
    *("..", "%2e%2e", ".%2E", "%2e.", "%252e%252e", "..;", "..;a=b", "..%3b", "%2e%2e;", "%c0%ae%c0%ae", "..%00"),
    *("%ef%bc%8e%ef%bc%8e", "%u002e%u002e", "...", "..%20", "..%09", "..%0d", "..%23", "..%3f"),
)
WORDS = (
    *("%61dmin", "%41dmin", "a%64min", "adm%69n", "%2561dmin", "%25%36%31dmin", "%u0061dmin", "%c1%a1dmin"),
    *("admin;x", "admin;a=b;c=d", "admin%3bx", "admin%00", "admin%00.png", "admin%0a", "admin%23", "admin%23/../x"),
    *("admin%3fx", "admin%3f/public", "admin%2f", "admin%5c", "admin%252f", "admin/.", "admin/..;/admin", ";/admin"),
    *(
        "admin//public",
        "admin/%70ublic",
        "admin/public;/..",
        "admin%2fpublic",
        "admin%2Fpublic%2f..",
        "admin/public/..",
    ),
    *("%61dmin//public", "admin;/..%2f..", "admin%2f..%2fpublic", "admin%2F..%2F..%2Fx", "admin/public%2f..%2fx"),
    *("admin%2fpublic%2f%2e%2e%2fx", "admin\\public", "admin;/public", "admin/;/public", "admin%;x", "admin%zz"),
    *("%40team", "%40team/x", "@team", "@tea%6d", "%40team%2fx", "%40team;x", "x/../@team", "caf%c3%a9", "caf%C3%A9"),
    *("caf%c3%A9/x", "caf%C3%A9;x", "caf%25C3%25A9", "x//@team", "/@team", "/%40team", "%2f@team", "%40team//x"),
)


def spellings() -> tuple[str, ...]:
    made = [f"/{word}" for word in WORDS]
    for slash in SLASHES:
        made += [
            f"{slash}admin",
            f"/x{slash}admin",
            f"/admin{slash}public",
            f"/admin{slash}x",
            f"/admin/public{slash}",
        ]
        for dots in DOTS:
            made += [
                f"/x{slash}{dots}{slash}admin",
                f"/admin{slash}{dots}{slash}x",
                f"/admin/public{slash}{dots}{slash}x",
            ]
    return tuple(dict.fromkeys(path for path in made if path.startswith("/")))


HONEST = (
    *(
        "/",
        "/x",
        "/admins/x",
        "/x/admin",
        "/admin/public/x",
        "/a/b.c/d-e_f~g",
        "/x?next=/a/../admin",
        "/a+b",
        "/a:b@c",
    ),
    *("/api/v4/projects/group%2Fproject/repository/files/src%2Fmain%2Erb/raw?ref=a%2Fb", "/@babel%2fcore", "/x%2By"),
    *("/%7Eann/x", "/proxy/https://a.example/b", "/x;jsessionid=1", "/x/y;a=b;c=d", "/100%25", "/wiki/What%3F"),
    *("/%E6%97%A5%E6%9C%AC/x", "/%40other/x", "/a|b", "/a%20b/c", "/x//y", "/caf%C3%A9s", "/(a),'b'!$&*=c"),
)


async def exchanged(port: int, request: str) -> tuple[int, Any]:
    """Send a request unchanged; return the status, and the Pod's answer, if any."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    if not head:
        return 0, None
    status, headers = int(head.split(None, 2)[1]), head.lower()
    if b"transfer-encoding: chunked" in headers:
        body = body.partition(b"\r\n")[2].rpartition(b"\r\n0\r\n")[0]
    return status, json.loads(body) if status == 200 else None


async def passed(port: int, host: str, exchange: Exchange = exchanged) -> list[str]:
    """Try all spellings; return those that reached a guarded handler, or reached the Pod in another form."""
    wrong = []
    for path in spellings():
        status, told = await exchange(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        if told and (told["raw"] != path or any(each.startswith("guarded") for each in told["handlers"])):
            wrong.append(f"{path} {told}")
        elif status not in (200, 308, 400, 403, 404):
            wrong.append(f"{path} {status}")
    return wrong


async def refused(port: int, host: str, exchange: Exchange = exchanged) -> list[str]:
    """Send honest clients' requests; return those that did not reach the Pod unchanged."""
    wrong = []
    for path in HONEST:
        status, told = await exchange(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        # Flask itself redirects `//` and paths without a slash at the end.
        if status != 308 and (not told or told["raw"] != path):
            wrong.append(f"{path} {status} {told}")
    return wrong
