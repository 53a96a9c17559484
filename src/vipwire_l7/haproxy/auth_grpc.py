"""Writes the Lua that calls a gRPC authorization server: Envoy's service.auth.v3.Authorization/Check.

HAProxy's Lua client sends HTTP/1 to the frontend for copies (see `mirrors`), which sends HTTP/2 to the server: so a
call is one request whose body is one message. The Lua encodes and decodes the few fields of the messages itself. A
response that it cannot decode, or a gRPC error without a message, denies the request.
"""

from typing import Final

LUA: Final = """local function varint(number)
  local text = ""
  while number > 127 do
    text, number = text .. string.char(number % 128 + 128), number // 128
  end
  return text .. string.char(number)
end
local function field(number, data) return varint(number * 8 + 2) .. varint(#data) .. data end
local function fields(data)
  local at = 1
  local function integer()
    local number, shift = 0, 0
    repeat
      local byte = string.byte(data, at)
      if not byte or shift > 63 then error("not a message") end
      number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
    until byte < 128
    return number
  end
  return function()
    if at > #data then return nil end
    local key = integer()
    local kind, length = key & 7, 0
    if kind == 0 then return key >> 3, integer() end
    if kind == 2 then length = integer() elseif kind == 1 then length = 8 elseif kind == 5 then length = 4 end
    local known = kind == 1 or kind == 2 or kind == 5
    if not known or length < 0 or length > #data - at + 1 then error("not a message") end
    at = at + length
    return key >> 3, string.sub(data, at - length, at - 1)
  end
end
local function last(data, wanted, default)
  for number, value in fields(data) do
    if number == wanted then default = value end
  end
  return default
end
local function options(data, wanted)
  local found = {}
  for number, option in fields(data) do
    if number == wanted then
      local header = last(option, 1, "")
      local name, value = string.lower(last(header, 1, "")), last(header, 2, "")
      if value == "" then value = last(header, 3, "") end
      if string.match(name, "^[%w_-]+$") and not framing[name] and not string.find(value, "[%c]") then
        found[#found + 1] = {name = name, value = value, adds = last(last(option, 2, ""), 1, 0) == 1}
      end
    end
  end
  return found
end
local function peer(number, address, port)
  return field(number, field(1, field(1, field(2, address or "") .. varint(24) .. varint(port or 0))))
end
local function question(txn, asked, host, body)
  local only, headers = nil, ""
  if asked ~= "-" then
    only = {}
    for name in string.gmatch(asked, "[^,]+") do only[name] = true end
  end
  for name, values in pairs(txn.http:req_get_headers()) do
    if name ~= "HEADER" and (not only or only[name]) then
      local list, at = {}, 0
      while values[at] do list[#list + 1], at = values[at], at + 1 end
      headers = headers .. field(3, field(1, name) .. field(2, table.concat(list, ",")))
    end
  end
  local tls = txn.f:ssl_fc() == 1 or txn.f:ssl_fc() == true
  local http = field(2, txn.f:method()) .. headers .. field(4, txn.f:pathq()) .. field(5, host)
    .. field(6, tls and "https" or "http") .. field(10, "HTTP/" .. txn.f:req_ver())
  if body then http = http .. varint(72) .. varint(#body) .. field(11, body) end
  return field(1, peer(1, txn.f:src(), txn.f:src_port()) .. peer(2, txn.f:dst(), txn.f:dst_port())
    .. field(4, field(2, http)))
end
local function verdict(txn, message)
  if last(last(message, 1, ""), 1, 0) == 0 then
    local ok = last(message, 3, "")
    for number, name in fields(ok) do
      if number == 5 and not framing[string.lower(name)] then txn.http:req_del_header(name) end
    end
    for _, each in ipairs(options(ok, 2)) do
      if each.adds then txn.http:req_add_header(each.name, each.value)
      else txn.http:req_set_header(each.name, each.value) end
    end
    return nil
  end
  local denied, headers = last(message, 2, ""), {}
  local status = last(last(denied, 1, ""), 1, 403)
  if status < 200 or status > 599 then status = 403 end
  for _, each in ipairs(options(denied, 2)) do
    headers[each.name] = headers[each.name] or {}
    table.insert(headers[each.name], each.value)
  end
  return {status = status, headers = headers, body = last(denied, 3, "")}
end
core.register_action("vipwire_auth_grpc", {"http-req"}, function(txn, pool, asked, with_body)
  local host, body = txn.f:req_hdr("host") or "auth", nil
  if not string.match(host, "^[%w._:%[%]-]+$") then return deny(txn, 400, {}, "not a host") end
  if with_body ~= "-" then
    if txn.f:req_body_size() > txn.f:req_body_len() then return deny(txn, 413, {}, "too long a body") end
    body = txn.f:req_body()
  end
  local message = question(txn, asked, host, body)
  local answer = core.httpclient():post({
    url = "http://" .. host .. "/envoy.service.auth.v3.Authorization/Check", dst = "SOCKET", timeout = 10000,
    headers = {["HEADER"] = {pool}, ["content-type"] = {"application/grpc"}, ["te"] = {"trailers"}},
    body = string.char(0) .. string.pack(">I4", #message) .. message})
  local said = answer and answer.status == 200 and answer.body or ""
  local read, refused = false, nil
  if #said >= 5 and string.byte(said) == 0 and string.unpack(">I4", said, 2) == #said - 5 then
    read, refused = pcall(verdict, txn, string.sub(said, 6))
  end
  if not read then return deny(txn, 503, {}, "no answer to whether this is allowed") end
  if refused then return deny(txn, refused.status, refused.headers, refused.body) end
  txn:set_var("txn.allowed", true)
end, 3)
"""
