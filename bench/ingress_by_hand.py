"""The configuration that `bench.ingress` compares with: an operator's own for the same sites.

It does the same for a request as vipwire's: tells the Pod about the client, has the same timeouts, retries requests
that can be repeated safely, answers 404 if no rule matches. Two usual forms: rules with ACLs for one host, a map for
a thousand.
"""

_HEAD = """global
    nbthread 1

defaults
    mode http
    option redispatch 1
    retries 3
    retry-on conn-failure empty-response
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout queue 30s
    timeout tunnel 1h
    timeout http-request 10s
    timeout http-keep-alive 60s

frontend web
    bind {bind}
    option forwardfor
    http-request del-header X-Forwarded-For
    http-request set-header X-Forwarded-Proto https if {{ ssl_fc }}
    http-request set-header X-Forwarded-Proto http if !{{ ssl_fc }}
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    http-request disable-l7-retry unless {{ method GET HEAD OPTIONS }}
"""
_NOWHERE = """    default_backend nowhere

backend nowhere
    http-request return status 404 content-type text/plain string "nothing here"
"""
_BACKEND = """
backend {name}
    balance roundrobin
    {cookie}server one 127.0.0.1:{pod}{bound}
"""


def for_one_host(bind: str, host: str, pod: int, *, sticky: bool = False) -> str:
    """Return a configuration with ACLs. `sticky`: a cookie binds to the server."""
    rule = f"    use_backend shop if {{ req.hdr(host) -i {host} }} {{ path_beg /app }}\n"
    cookie = "cookie VIPWIRE insert indirect nocache httponly\n    " if sticky else ""
    backend = _BACKEND.format(name="shop", pod=pod, cookie=cookie, bound=" cookie one" if sticky else "")
    return _HEAD.format(bind=bind) + rule + _NOWHERE + backend


def for_hosts(bind: str, names: list[str], pod: int, file: str) -> tuple[str, str]:
    """Return a configuration with a map of hosts, and the map for `file`."""
    rule = f"    use_backend %[req.hdr(host),lower,map_str({file})]\n"
    backends = "".join(_BACKEND.format(name=f"be_{name}", pod=pod, cookie="", bound="") for name in names)
    entries = "".join(f"{name} be_{name}\n" for name in names)
    return _HEAD.format(bind=bind) + rule + _NOWHERE + backends, entries
