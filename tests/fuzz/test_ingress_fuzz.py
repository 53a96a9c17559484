"""Nothing in an object can write a line of HAProxy's configuration.

Whatever stands in hosts, paths, names, annotations and Secrets: every line that is rendered begins as one of ours
does, and `haproxy -c` takes the whole (expressions alone may be refused, which the controller isolates).
"""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.l7.plans import listed, plan_all

from vipwire.model.names import ObjectName
from vipwire_l7.haproxy.configuration import Configuration, build_configuration
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.slots import fill_slots
from vipwire_l7.haproxy.state import compare_configurations
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.annotations import READERS
from vipwire_l7.plan.endpoints import choose_servers
from vipwire_l7.plan.plan import Setting
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import BackendService, IngressKind
from vipwire_l7.watch.snapshot import Snapshot

NASTY = (
    "\n    http-request deny",
    "a'b",
    'a"b',
    "a\\",
    "%[src]",
    "$HOME",
    "# x",
    " a b ",
    "}",
    "{}",
    "{0}",
    ";",
    "<<",
    "\x00",
    "é",
)
PLAIN = (
    *("true", "cookie", "uri", "header", "5", "30s", "1m", "10m", 'X-A: b % c " \\ $x', "X-A", "10.0.0.0/8,::1"),
    *("/x", "/$1", "h2", "https", "v2", "leastconn", "users", "*", "https://*.a.org", "GET,PUT", "Lax", "a.b-c_d"),
)
values = st.one_of(st.sampled_from(PLAIN), st.sampled_from(NASTY), st.text(max_size=20))
mixed = st.builds(lambda first, second: first + second, st.sampled_from(("", *PLAIN)), values)
annotations = st.dictionaries(
    st.one_of(
        st.sampled_from(sorted(READERS)).map("vipwire.io/{}".format),
        st.sampled_from(sorted(READERS)).map("nginx.ingress.kubernetes.io/{}".format),
        st.text(max_size=20),
    ),
    st.one_of(st.sampled_from(PLAIN), mixed),
    max_size=12,
)
hosts = st.one_of(st.sampled_from(("a.example.com", "*.example.com", "")), mixed)
paths = st.one_of(st.sampled_from(("/", "/a/b", "/a;b", "/%41'!$&()*+,=:@-._~")), mixed.map("/{}".format), mixed)
KINDS = ("Exact", "Prefix", "ImplementationSpecific")
BEGINS = ("    ", "global", "defaults", "resolvers cluster", "userlist users-", "frontend ", "backend ")
WORDS = {
    *(
        "expose-experimental-directives",
        "description",
        "stats",
        "hard-stop-after",
        "ssl-default-bind-options",
        "ssl-server-verify",
        "log",
        "lua-load",
        "nbthread",
    ),
    *("tune.ssl.default-dh-param", "tune.http.logurilen", "maxconn", "mode"),
    *("retries", "option", "retry-on", "timeout", "parse-resolv-conf", "hold", "accepted_payload_size", "bind"),
    *("http-request", "http-response", "use_backend", "default_backend", "balance", "hash-type", "cookie", "no"),
    *("dynamic-cookie-key", "http-check", "acl", "stick-table", "default-server", "server", "user", "tcp-request"),
}


def convert(kind: IngressKind, source: dict[str, Any]) -> Any:
    made, _ = RESOURCES[kind].convert(msgspec.convert(source, RESOURCES[kind].type))
    return made


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Make Ingresses out of anything, beside a Service with an endpoint and a Secret of users."""
    ingresses = []
    for number in range(draw(st.integers(1, 3))):
        port = {"number": 80}
        each = {
            "host": draw(hosts),
            "http": {
                "paths": [
                    {
                        "path": draw(paths),
                        "pathType": draw(st.sampled_from(KINDS)),
                        "backend": {"service": {"name": draw(st.sampled_from(("web", "far", "none"))), "port": port}},
                    }
                ]
            },
        }
        tls = [{"hosts": [draw(hosts)], "secretName": draw(st.sampled_from(("pair", "users", "x y")))}]
        meta = {"name": f"i{number}", "namespace": "default", "annotations": draw(annotations)}
        spec = {"ingressClassName": "vipwire", "rules": [each], "tls": tls}
        ingresses.append(convert(IngressKind.INGRESS, {"metadata": meta, "spec": spec}))
    return listed((*ingresses, *_fixed(draw(mixed))))


def _fixed(users: str) -> tuple[Any, ...]:
    meta = {"namespace": "default"}
    web = convert(IngressKind.SERVICE, {"metadata": meta | {"name": "web"}, "spec": {"ports": [{"port": 80}]}})
    far_spec = {"ports": [{"port": 80}], "type": "ExternalName", "externalName": "far.example.com"}
    far = convert(IngressKind.SERVICE, {"metadata": meta | {"name": "far"}, "spec": far_spec})
    digest = "$5$saltsalt$" + "a" * 43
    auth = {"auth": f"anna:{digest}\n{users}:{digest}\nbob:{users}"}
    secret = convert(IngressKind.SECRET, {"metadata": meta | {"name": "users"}, "stringData": auth})
    crt, _, key = PEM.partition("-----BEGIN PRIVATE")
    data = {"tls.crt": crt, "tls.key": f"-----BEGIN PRIVATE{key}"}
    pair = convert(IngressKind.SECRET, {"metadata": meta | {"name": "pair"}, "stringData": data})
    return web, far, secret, pair


def _pem() -> str:
    import datetime as dt  # noqa: PLC0415

    return make_certificate(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "a.example.com")


PEM = _pem()


def rendered(world: Snapshot, folder: str) -> Configuration:
    return configured(plan_all(IngressPlanner(Setting()), world, 1.8e9), world.services, folder)


def configured(plan: SitePlan, services: Mapping[ObjectName, BackendService], folder: str) -> Configuration:
    """Render a plan, in which Services have the endpoint of the Service `web`."""
    slice_ = convert(
        IngressKind.SLICE,
        {
            "metadata": {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"port": 8080}],
            "endpoints": [{"addresses": ["10.0.0.1"]}],
        },
    )
    web = services[ObjectName("default", "web")]
    slots = {pool.name: fill_slots((), choose_servers(pool, web, (slice_,))) for pool in plan.pools}
    return build_configuration(plan, slots, Layout(folder, f"{folder}/sock", "127.0.0.1:1", "127.0.0.1:2"), PEM)


def check(made: Configuration, folder: Path) -> str:
    """Let HAProxy judge; return what it says against it."""
    for name, content in (("haproxy.cfg", made.write_text("fuzz")), *made.list_files()):
        (folder / name).write_text(content, encoding="utf-8", newline="")
    command = ("haproxy", "-c", "-f", str(folder / "haproxy.cfg"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stderr if done.returncode else ""


def check_lines(made: Configuration) -> None:
    """Fail if a line begins otherwise than ours do, or a map or a file's name has more than one word."""
    for line in made.write_text("fuzz").split("\n"):
        assert line == "" or line.startswith(BEGINS)
        assert line.isascii()
        assert line == "" or line.isprintable()
        if line.startswith("    "):
            assert line.split()[0] in WORDS
    for entries in made.maps.values():
        assert all(key.isprintable() and not set(key) & set(" \t") for key in entries)
    assert all(name.count(" ") == 0 for name in made.certificates)


@given(worlds())
def test_every_line_is_one_of_ours(world: Snapshot) -> None:
    check_lines(rendered(world, "/run/x"))


@given(worlds(), worlds())
def test_no_command_carries_another(first: Snapshot, second: Snapshot) -> None:
    live, desired = rendered(first, "/run/x"), rendered(second, "/run/x")
    for command in compare_configurations(live, desired).commands:
        head, *payload = command.split("\n")
        assert head.split()[0] in ("set", "add", "del", "new", "commit")
        assert ";" not in head.replace("\\;", "")
        assert all(payload[:-1])
        assert head.endswith("<<") == bool(payload)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_haproxy_takes_whatever_is_rendered(world: Snapshot) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = rendered(world, folder)
        said = check(made, Path(folder))
        assert not said or (made.maps["expressions"] and "regex '" in said) or "replace-path" in said, said
