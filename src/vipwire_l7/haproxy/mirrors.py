"""Writes the rules and the Lua that send copies of requests: to a mirror, or to an authorization server. Pure.

HAProxy has no rules for this. The Lua sends a copy to a frontend that only HAProxy can reach, which sends it to the
pool that the copy's header names: so these endpoints change like all others.

For a mirror, a filter reads the request as it passes and sends the copy after its last byte. No request waits for a
mirror, so streams and slow uploads are not delayed. A request whose body is longer than the filter's limit is not
mirrored; with HAProxy 2.9 and later, nor is a body of unknown length, such as gRPC's. An error in a filter would end
the process (2.6), so each of its functions runs protected.

HAProxy keeps a copy until the mirror answers, so a mirror gets few copies at a time. Lua discards the response as it
arrives, until it ends, is too long or too late. The frontend turns all responses but gRPC's into a 204.

A request waits for the authorization server's answer. HAProxy's Lua client keeps all of the answer, so the frontend
passes short answers only. Only a short 200 allows the request.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from vipwire_l7.haproxy import auth_grpc
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.words import write_line, write_plain, write_plain_words, write_quoted
from vipwire_l7.plan.policy import ExternalAuth, Policy

MIRROR_FILE: Final = "mirror.lua"
_SOCKET: Final = "mirrors"
_HEADER: Final = "x-vipwire-mirror"
_WORDS_IN_A_LINE: Final = 20
_LONGEST: Final = 65536
"""The maximum body in bytes that a mirror's filter holds until the request ends."""
_COPIES: Final = 64
_COPIES_OF_NAMESPACE: Final = 128
_ALL_COPIES: Final = 256
"""The maximum of copies in flight per thread: for one mirror, for a namespace, for all.

Further copies are not sent.
"""
_LONGEST_ANSWER: Final = 65536
_BUFFERED: Final = 13500
"""The maximum response in bytes, by its Content-Length, or by HAProxy's buffer for headers and body."""
_THROWN: Final = 1 << 20
_LASTS: Final = 10
"""The maximum bytes and seconds of a mirror's response."""
_LUA: Final = """local own = {["host"] = true, ["connection"] = true}
own["content-length"], own["transfer-encoding"] = true, true
local waiting, all = {}, 0
local open, watched = {}, false
local function watch()
  while next(open) do
    core.sleep(1)
    local now = core.now().sec
    for socket, ends in pairs(open) do
      if now > ends then
        open[socket] = nil
        pcall(socket.close, socket)
      end
    end
  end
  watched = false
end
-- Sends a copy, throws its answer away as it comes.
local function exchange(socket, head, parts)
  socket:settimeout(LASTS)
  if not socket:connect("SOCKET") or not socket:send(head) then return end
  for _, part in ipairs(parts) do
    if not socket:send(part) then return end
  end
  local left = THROWN
  while left > 0 and socket:receive(4096) do left = left - 4096 end
  -- HAProxy closes the connection of a longer answer only when it times out: the copy counts for as long.
  if left <= 0 then core.sleep(LASTS) end
end
-- From HAProxy 2.9, a filter that reads a request of unknown length stops it at its second or third piece.
local version = string.match(core.get_info()["Version"] or "", "^%d+%.%d+")
local reads_streams = tonumber(version or "0") < 2.9
local Mirror = {id = "vipwire_mirror", flags = filter.FLT_CFG_FL_HTX}
Mirror.__index = Mirror
function Mirror:new() return setmetatable({}, {__index = self}) end
local function protected(done)
  return function(self, txn, message)
    if not message.channel:is_resp() then pcall(done, self, txn, message) end
  end
end
-- Of each `whole` requests `part` are drawn, as lots from an urn: the share is exact for few requests too.
local function is_drawn(urn, txn)
  if urn.lots == 0 then urn.lots, urn.hits = urn.whole, urn.part end
  local hit = txn.f:rand(urn.lots) < urn.hits
  urn.lots, urn.hits = urn.lots - 1, urn.hits - (hit and 1 or 0)
  return hit
end
Mirror.http_headers = protected(function(self, txn, message)
  if not reads_streams and not message:eom() and not txn.f:req_hdr("content-length") then return end
  if not is_drawn(self.urn, txn) then return end
  local sent = {txn.f:method() .. " " .. txn.f:pathq() .. " HTTP/1.1", "connection: close",
                "host: " .. (txn.f:req_hdr("host") or "mirror"), "HEADER: " .. self.pool, "HEADER: copy"}
  for name, values in pairs(message:get_headers()) do
    if not own[name] and name ~= "HEADER" then
      for _, value in pairs(values) do sent[#sent + 1] = name .. ": " .. value end
    end
  end
  if string.find(table.concat(sent), "[\\r\\n]") then return end
  self.head, self.parts, self.size = table.concat(sent, "\\r\\n"), {}, 0
  filter.register_data_filter(self, message.channel)
end)
Mirror.http_payload = protected(function(self, _, message)
  local data = self.head and message:body()
  if not data then return end
  self.size = self.size + #data
  if self.size > LONGEST then self.head, self.parts = nil, nil else table.insert(self.parts, data) end
end)
Mirror.http_end = protected(function(self)
  local head, parts, pool = self.head, self.parts, self.pool
  if not head then return end
  self.head = nil
  local space = string.match(pool, "^[^:]*")
  local before, of_space = waiting[pool] or 0, waiting[space] or 0
  if before >= COPIES or of_space >= SPACE or all >= EVERY then return end
  head = head .. (self.size > 0 and "\\r\\ncontent-length: " .. self.size or "") .. "\\r\\n\\r\\n"
  core.register_task(function()
    local socket = core.tcp()
    open[socket] = core.now().sec + LASTS
    if not watched then
      watched = true
      core.register_task(watch)
    end
    pcall(exchange, socket, head, parts)
    open[socket] = nil
    pcall(socket.close, socket)
    waiting[pool], waiting[space], all = waiting[pool] - 1, waiting[space] - 1, all - 1
  end)
  waiting[pool], waiting[space], all = before + 1, of_space + 1, all + 1
end)
core.register_filter("vipwire_mirror", Mirror, function(of, words)
  of.pool, of.urn = words[1], {part = tonumber(words[2]), whole = tonumber(words[3]), lots = 0, hits = 0}
  return of
end)
local framing = {["host"] = true, ["connection"] = true, ["content-length"] = true, ["transfer-encoding"] = true}
framing["upgrade"], framing["te"], framing["trailer"], framing["keep-alive"] = true, true, true, true
framing["content-type"], framing["content-encoding"], framing["date"], framing["server"] = true, true, true, true
framing["HEADER"] = true
local function deny(txn, status, headers, body)
  local reply = txn:reply({status = status, body = body})
  for name, values in pairs(headers) do
    if not own[name] then
      for _, value in pairs(values) do reply:add_header(name, value) end
    end
  end
  txn:done(reply)
end
core.register_action("vipwire_auth", {"http-req"}, function(txn, pool, prefix, asked, kept, body)
  local given = txn.http:req_get_headers()
  local sent = {["x-forwarded-method"] = {txn.f:method()}}
  for name in string.gmatch("authorization," .. asked, "[^,]+") do
    if given[name] and not own[name] then
      sent[name] = {}
      for _, value in pairs(given[name]) do table.insert(sent[name], value) end
    end
  end
  sent["HEADER"] = {pool}
  local host, before = txn.f:req_hdr("host") or "auth", prefix == "-" and "" or prefix
  -- Else a client could write another path into what the server is asked about.
  if not string.match(host, "^[%w._:%[%]-]+$") then return deny(txn, 400, {}, "not a host") end
  local request = {url = "http://" .. host .. before .. txn.f:pathq(), headers = sent,
                   dst = "SOCKET", timeout = 10000}
  if body ~= "-" then
    if txn.f:req_body_size() > txn.f:req_body_len() then return deny(txn, 413, {}, "too long a body") end
    request.body = txn.f:req_body()
  end
  local client, method = core.httpclient(), string.lower(txn.f:method())
  local ask = ({get = 1, head = 1, put = 1, post = 1, delete = 1})[method] and client[method] or client.get
  local answer = ask(client, request)
  if not answer or not answer.status or answer.status < 200 then
    return deny(txn, 503, {}, "no answer to whether this is allowed")
  end
  if answer.status ~= 200 then return deny(txn, answer.status, answer.headers or {}, answer.body or "") end
  local only = {}
  for name in string.gmatch(kept == "-" and "" or kept, "[^,]+") do only[name] = true end
  for name, values in pairs(answer.headers or {}) do
    if not framing[name] and (kept == "-" or only[name]) then
      txn.http:req_del_header(name)
      for _, value in pairs(values) do txn.http:req_add_header(name, value) end
    end
  end
  txn:set_var("txn.allowed", true)
end, 5)
"""


def write_lua(layout: Layout) -> str:
    return (
        (_LUA + auth_grpc.LUA)
        .replace("HEADER", _HEADER)
        .replace("SOCKET", layout.get_inner_address(_SOCKET))
        .replace("LONGEST", str(_LONGEST))
        .replace("COPIES", str(_COPIES))
        .replace("SPACE", str(_COPIES_OF_NAMESPACE))
        .replace("THROWN", str(_THROWN))
        .replace("LASTS", str(_LASTS))
        .replace("EVERY", str(_ALL_COPIES))
    )


def write_mirror_filters(policy: Policy) -> Iterator[str]:
    for each in policy.mirrors:
        yield write_line(
            "filter lua.vipwire_mirror {} {} {}",
            write_plain(each.pool),
            write_plain(each.part),
            write_plain(each.whole),
        )


def write_auth_rules(auth: ExternalAuth) -> Iterator[str]:
    """Write the rules of a backend that asks an authorization server about each request."""
    if auth.body:
        yield write_line("http-request wait-for-body time 5s unless {{ method GET HEAD OPTIONS }}")
        yield write_line("http-request deny deny_status 413 if {{ req.body_size gt {} }}", write_plain(auth.body))
    asked = (auth.pool, *(() if auth.grpc else (auth.prefix or "-",)), _join_names(auth.headers))
    kept = () if auth.grpc else (_join_names(auth.response_headers),)
    words = (*asked, *kept, "body" if auth.body else "-")
    name = "vipwire_auth_grpc" if auth.grpc else "vipwire_auth"
    yield write_line(f"http-request lua.{name}{' {}' * len(words)}", *(write_quoted(word) for word in words))
    # A request goes on after an error in Lua, so only an explicit answer may allow it.
    yield write_line("http-request deny deny_status 503 unless {{ var(txn.allowed) -m bool }}")


def _join_names(names: tuple[str, ...]) -> str:
    return ",".join(name.lower() for name in names) or "-"


def list_mirror_and_auth_pools(policy: Policy) -> Iterator[str]:
    """Return the pools that get copies of requests: mirrors and the authorization server."""
    yield from (each.pool for each in policy.mirrors)
    if policy.external_auth:
        yield policy.external_auth.pool


def write_mirror_frontend(layout: Layout, policies: Iterable[Policy], nowhere: str) -> str:
    """Write the frontend for copies. It forwards to the pools of mirrors and authorization servers only."""
    targets = sorted({target for policy in policies for target in list_mirror_and_auth_pools(policy)})
    lines = [
        "frontend mirrors",
        f"    bind {layout.write_inner_bind(_SOCKET)}",
        write_line(f"http-request set-var(txn.target) req.hdr({_HEADER},1)"),
        write_line(f"http-request set-var(txn.copy) bool(true) if {{{{ req.hdr_cnt({_HEADER}) gt 1 }}}}"),
        write_line(f"http-request del-header {_HEADER}"),
        # A gRPC server answers while it reads: a copy without the stream's end would get no answer.
        write_line(
            "http-response set-var(txn.stream) bool(true) "
            "if {{ var(txn.copy) -m bool }} {{ res.hdr(content-type) -m beg application/grpc }}"
        ),
        write_line("http-response wait-for-body time 5s unless {{ var(txn.stream) -m bool }}"),
        write_line("http-response return status 204 if {{ var(txn.copy) -m bool }} !{{ var(txn.stream) -m bool }}"),
        write_line(
            f"http-response deny deny_status 502 if {{{{ res.hdr_val(content-length) gt {_LONGEST_ANSWER} }}}}"
        ),
        write_line(
            "http-response set-var(txn.headers) res.hdrs,length "
            "unless {{ res.hdr(content-length) -m found }} or {{ var(txn.stream) -m bool }}"
        ),
        write_line(
            "http-response deny deny_status 502 if {{ var(txn.headers) -m found }} "
            f"{{{{ res.body_len,add(txn.headers) -m int ge {_BUFFERED} }}}}"
        ),
    ]
    for start in range(0, len(targets), _WORDS_IN_A_LINE):
        chosen = write_plain_words(targets[start : start + _WORDS_IN_A_LINE])
        lines.append(write_line("use_backend %[var(txn.target)] if {{ var(txn.target) -m str {} }}", chosen))
    lines.append(write_line("default_backend {}", write_plain(nowhere)))
    return "\n".join(lines) + "\n"
