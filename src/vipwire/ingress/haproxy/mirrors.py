"""Writes what sends copies of requests to a second backend, whose answers are thrown away. Pure.

HAProxy has no rule for this. A few lines of Lua hand a copy to its own client, in a task of its own: the request
does not wait for it. The copy comes back in at a frontend that only this machine reaches, and goes to the pool that
its header names: so endpoints of mirrors change like all others. Bodies are copied as far as HAProxy holds them in
one buffer (16 KiB); a request with a longer one is not mirrored.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from vipwire.ingress.haproxy.layout import Layout
from vipwire.ingress.haproxy.words import line, plain
from vipwire.ingress.plan.policy import Policy

MIRROR_FILE: Final = "mirror.lua"
_HEADER: Final = "x-vipwire-mirror"
_LUA: Final = """local own = {["host"] = true, ["connection"] = true}
own["content-length"], own["transfer-encoding"] = true, true
core.register_action("vipwire_mirror", {"http-req"}, function(txn, pool)
  if txn.f:req_body_size() > txn.f:req_body_len() then return end
  local sent = {["HEADER"] = {pool}}
  for name, values in pairs(txn.http:req_get_headers()) do
    if not own[name] and name ~= "HEADER" then
      local list = {}
      for _, value in pairs(values) do list[#list + 1] = value end
      sent[name] = list
    end
  end
  local host = txn.f:req_hdr("host") or "mirror"
  local request = {url = "http://" .. host .. txn.f:pathq(), headers = sent, body = txn.f:req_body(),
                   dst = "abns@SOCKET", timeout = 10000}
  local method = string.lower(txn.f:method())
  core.register_task(function()
    local client = core.httpclient()
    if client[method] then client[method](client, request) end
  end)
end, 1)
"""


def socket_name(layout: Layout) -> str:
    """Name the abstract socket at which copies come back in."""
    return f"vipwire-mirror-{hashlib.sha256(layout.socket.encode()).hexdigest()[:16]}"


def mirror_lua(layout: Layout) -> str:
    """Write the file of Lua."""
    return _LUA.replace("HEADER", _HEADER).replace("SOCKET", socket_name(layout))


def mirror_lines(policy: Policy) -> Iterator[str]:
    """Write the rules of a backend that mirrors."""
    if policy.mirrors:
        yield line("http-request wait-for-body time 5s unless {{ method GET HEAD OPTIONS }}")
    for each in policy.mirrors:
        some = f" if {{{{ rand({plain(each.whole)}) lt {plain(each.part)} }}}}" if each.part < each.whole else ""
        yield line(f"http-request lua.vipwire_mirror {{}}{some}", plain(each.pool))


def mirror_frontend(layout: Layout, nowhere: str) -> str:
    """Write the frontend at which copies come back in."""
    lines = [
        "frontend mirrors",
        line("bind {}", plain(f"abns@{socket_name(layout)}")),
        line(f"http-request set-var(txn.target) req.hdr({_HEADER})"),
        line(f"http-request del-header {_HEADER}"),
        line("use_backend %[var(txn.target)] if {{ var(txn.target) -m found }}"),
        line("default_backend {}", plain(nowhere)),
    ]
    return "\n".join(lines) + "\n"
