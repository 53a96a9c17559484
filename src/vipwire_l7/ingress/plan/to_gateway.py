"""Converts Ingresses to Gateway API objects, and reports features without an equivalent. Pure.

Each namespace gets a Gateway `ingress` with its certificates; each host of an Ingress gets an HTTPRoute. A canary
becomes weights and header matches of the route whose path it splits. Annotations without a place in the Gateway API
become vipwire's own policies (`to_policies`). Like `vipwire ingress`, the conversion reads vipwire's annotations and
those of other controllers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.ingress.plan.ingress_content import get_wildcard
from vipwire_l7.ingress.plan.to_policies import IN_POLICIES, write_backend_policies, write_traffic_policies
from vipwire_l7.plan.annotations import READERS, AnnotationValues, read_annotations
from vipwire_l7.plan.policy import Cors, Redirect
from vipwire_l7.plan.pool_policy import is_expression, read_cors, read_hsts, read_redirect
from vipwire_l7.plan.sites import EVERY_HOST
from vipwire_l7.watch.objects import BackendService, Ingress, Json, PathRule, PathType, ServiceRef, Tls

_API: Final = "gateway.networking.k8s.io/v1"
_GATEWAY: Final = "ingress"
_CONVERTED: Final = frozenset(
    {"affinity", "session-cookie-name", "session-cookie-max-age", "timeout-server", "retries", "ssl-redirect"}
    | {"force-ssl-redirect", "permanent-redirect", "permanent-redirect-code", "temporal-redirect"}
    | {"temporal-redirect-code", "rewrite-target", "use-regex", "set-request-headers", "remove-request-headers"}
    | {"upstream-vhost", "set-response-headers", "remove-response-headers", "cors", "cors-allow-origin"}
    | {"cors-allow-methods", "cors-allow-headers", "cors-expose-headers", "cors-allow-credentials", "cors-max-age"}
    | {"canary", "canary-weight", "canary-by-header", "canary-by-header-value"}
    | {"hsts", "hsts-max-age", "hsts-include-subdomains", "hsts-preload", "app-root"}
)


@dataclass(slots=True)
class Converted:
    """The objects, and a Problem for each feature that they lack."""

    objects: list[Json] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def convert_to_gateway(
    ingresses: Iterable[Ingress], services: Mapping[ObjectName, BackendService], class_name: str
) -> Converted:
    """Convert Ingresses. `services` has the numbers of named ports."""
    made = Converted()
    read = [(each, read_annotations(each)) for each in sorted(ingresses, key=lambda each: each.age)]
    canaries = [(each, values) for each, values in read if values.is_true("canary")]
    for namespace in sorted({each.name.namespace for each, _ in read}):
        tls = [tls for each, _ in read if each.name.namespace == namespace for tls in each.tls]
        made.objects.append(_write_gateway(namespace, tls, class_name))
    for each, values in read:
        _report_lost_annotations(each, values, made)
        if not values.is_true("canary"):
            one = _IngressConversion(each, values, services, made, canaries)
            routes = [
                route for host, rules in _group_by_host(each).items() for route in _write_routes(one, host, rules)
            ]
            made.objects += routes
            made.objects += write_traffic_policies(each, values, [route["metadata"]["name"] for route in routes])
    policies, problems = write_backend_policies(
        [(each, values) for each, values in read if not values.is_true("canary")]
    )
    made.objects += policies
    made.problems += problems
    return made


def _report_lost_annotations(ingress: Ingress, values: AnnotationValues, made: Converted) -> None:
    made.problems += values.problems
    kept = _CONVERTED if values.is_true("canary") else _CONVERTED | IN_POLICIES
    for name in READERS:
        if name not in kept and name in values.values:
            text = "has no equivalent in the Gateway API; it is left out"
            made.problems.append(Problem("Ingress", ingress.name, f"metadata.annotations[{name}]", text))


def _group_by_host(ingress: Ingress) -> dict[str, list[PathRule]]:
    found: dict[str, list[PathRule]] = {}
    for rule in ingress.rules:
        found.setdefault(rule.host or EVERY_HOST, []).append(rule)
    if ingress.default_backend is not None:
        rule = PathRule("", "/", PathType.PREFIX, ingress.default_backend, "spec.defaultBackend")
        for rules in [*found.values()] or [found.setdefault(EVERY_HOST, [])]:
            if not any(each.path == "/" for each in rules):
                rules.append(rule)
    return found


def _write_gateway(namespace: str, certificates: Iterable[Tls], class_name: str) -> Json:
    http: Json = {"name": "http", "port": 80, "protocol": "HTTP"}
    secrets: dict[str, list[str]] = {}
    for tls in certificates:
        for host in tls.hosts or (EVERY_HOST,):
            if tls.secret is not None and tls.secret.name not in secrets.setdefault(host, []):
                secrets[host].append(tls.secret.name)
    https = [
        {"name": _name_listener(host), "port": 443, "protocol": "HTTPS"}
        | ({} if host == EVERY_HOST else {"hostname": host})
        | {"tls": {"mode": "Terminate", "certificateRefs": [{"name": name} for name in names]}}
        for host, names in secrets.items()
        if names
    ]
    meta = {"name": _GATEWAY, "namespace": namespace}
    spec = {"gatewayClassName": class_name, "listeners": [http, *https]}
    return {"apiVersion": _API, "kind": "Gateway", "metadata": meta, "spec": spec}


def _name_listener(host: str) -> str:
    return f"https-{host.replace('*.', 'any-').replace(EVERY_HOST, 'any')}"[:253]


@dataclass(frozen=True, slots=True)
class _IngressConversion:
    ingress: Ingress
    values: AnnotationValues
    services: Mapping[ObjectName, BackendService]
    made: Converted
    canaries: list[tuple[Ingress, AnnotationValues]]

    def add_problem(self, where: str, text: str) -> None:
        self.made.problems.append(Problem("Ingress", self.ingress.name, where, text))

    def list_https_listeners(self, host: str) -> list[str]:
        hosts = {each for tls in self.ingress.tls if tls.secret for each in tls.hosts or (EVERY_HOST,)}
        return [_name_listener(each) for each in (host, get_wildcard(host), EVERY_HOST) if each in hosts][:1]


def _write_routes(one: _IngressConversion, host: str, rules: list[PathRule]) -> Iterator[Json]:
    secure = one.list_https_listeners(host)
    redirects = (bool(secure) and one.values.is_not_false("ssl-redirect")) or one.values.is_true("force-ssl-redirect")
    name = one.ingress.name.name + ("" if host == EVERY_HOST else f"-{host.replace('*', 'any')}")
    sections = [*secure] if redirects and secure else ["http", *secure]
    yield _write_route(one, name, host, sections, list(_write_rules(one, rules)))
    if redirects and secure:
        redirect = {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 308}}
        yield _write_route(one, f"{name}-to-https", host, ["http"], [{"filters": [redirect]}])


def _write_route(one: _IngressConversion, name: str, host: str, sections: list[str], rules: list[Json]) -> Json:
    parents = [{"name": _GATEWAY, "sectionName": section} for section in sections]
    hosts: Json = {} if host == EVERY_HOST else {"hostnames": [host]}
    meta = {"name": name[:253], "namespace": one.ingress.name.namespace}
    spec = {"parentRefs": parents, **hosts, "rules": rules}
    return {"apiVersion": _API, "kind": "HTTPRoute", "metadata": meta, "spec": spec}


def _write_rules(one: _IngressConversion, rules: Iterable[PathRule]) -> Iterator[Json]:
    for rule in rules:
        match = _write_match(one, rule)
        if (root := one.values.get_text("app-root")) is not None and rule.path == "/":
            yield from _write_root_redirect(one, root)
        filters = list(_write_filters(one, rule))
        if any(each["type"] == "RequestRedirect" for each in filters):
            yield {"matches": [match], "filters": filters}
            continue
        main = _write_backend(one, rule.backend, rule.field)
        if main is None:
            continue
        more = _write_rule_fields(one, filters)
        shares, weight = [], 100
        for ingress, values, canary in _find_canaries(one, rule):
            part = _write_backend(one, canary.backend, canary.field)
            if part is None:
                continue
            if header := values.get_text("canary-by-header"):
                value = values("canary-by-header-value", "always")
                asked = {**match, "headers": [{"name": header, "value": value}]}
                yield {"matches": [asked], "backendRefs": [part], **more}
            if share := values("canary-weight", 0):
                shares.append({**part, "weight": share})
                weight -= share
            if values.get_text("canary-by-cookie"):
                one.add_problem("metadata.annotations[canary-by-cookie]", f"of {ingress.name} has no equivalent")
        refs = [{**main, "weight": max(weight, 0)}, *shares] if shares else [main]
        yield {"matches": [match], "backendRefs": refs, **more}


def _write_root_redirect(one: _IngressConversion, root: str) -> Iterator[Json]:
    if "?" in root:
        one.add_problem("metadata.annotations[app-root]", "with a query has no equivalent; it is left out")
        return
    redirect = {"path": {"type": "ReplaceFullPath", "replaceFullPath": root}, "statusCode": 302}
    exact = {"path": {"type": "Exact", "value": "/"}}
    yield {"matches": [exact], "filters": [{"type": "RequestRedirect", "requestRedirect": redirect}]}


def _find_canaries(one: _IngressConversion, rule: PathRule) -> Iterator[tuple[Ingress, AnnotationValues, PathRule]]:
    for ingress, values in one.canaries:
        for each in ingress.rules:
            same = (each.host, each.path, each.type) == (rule.host, rule.path, rule.type)
            if same and ingress.name.namespace == one.ingress.name.namespace:
                yield ingress, values, each


def _write_match(one: _IngressConversion, rule: PathRule) -> Json:
    if is_expression(rule, one.values):
        return {"path": {"type": "RegularExpression", "value": f"{rule.path.removeprefix('^').removesuffix('$')}.*"}}
    kind = "Exact" if rule.type is PathType.EXACT else "PathPrefix"
    return {"path": {"type": kind, "value": rule.path}}


def _write_backend(one: _IngressConversion, ref: ServiceRef, where: str) -> Json | None:
    port = ref.port
    if isinstance(port, str):
        service = one.services.get(ref.service)
        named = next((each.number for each in service.ports if each.name == port), None) if service else None
        if named is None:
            one.add_problem(where, f"the port {port} of {ref.service} is not known; the Gateway API wants its number")
            return None
        port = named
    return {"name": ref.service.name, "port": port}


def _write_filters(one: _IngressConversion, rule: PathRule) -> Iterator[Json]:
    values = one.values
    if (redirect := read_redirect(values)) is not None:
        yield _write_redirect(redirect)
        return
    for side in ("request", "response"):
        set_: tuple[tuple[str, str], ...] = values(f"set-{side}-headers", ())
        remove = values(f"remove-{side}-headers", ())
        if side == "response" and (hsts := read_hsts(values)) is not None:
            set_ = (*set_, ("Strict-Transport-Security", hsts.header))
        if set_ or remove:
            change: Json = {"set": [{"name": name, "value": value} for name, value in set_], "remove": list(remove)}
            field_ = f"{side}HeaderModifier"
            yield {"type": field_[0].upper() + field_[1:], field_: {key: to for key, to in change.items() if to}}
    rewrite: Json = {"hostname": host} if (host := values.get_text("upstream-vhost")) else {}
    if (target := values.get_text("rewrite-target")) is not None:
        if rule.type is PathType.EXACT or is_expression(rule, values) or "$" in target:
            one.add_problem(
                "metadata.annotations[rewrite-target]", "not converted: the path is exact or an expression"
            )
        else:
            rewrite["path"] = {"type": "ReplacePrefixMatch", "replacePrefixMatch": target}
    if rewrite:
        yield {"type": "URLRewrite", "urlRewrite": rewrite}
    if (cors := read_cors(values)) is not None:
        yield {"type": "CORS", "cors": _write_cors(cors, values.get_number("cors-max-age"))}


def _write_redirect(of: Redirect) -> Json:
    parts = urlsplit(of.location)
    found: Json = {"scheme": parts.scheme, "hostname": parts.hostname, "port": parts.port, "statusCode": of.code}
    if (parts.path and parts.path != "/") or not of.keep_path:
        found["path"] = {"type": "ReplaceFullPath", "replaceFullPath": parts.path or "/"}
    return {"type": "RequestRedirect", "requestRedirect": {key: to for key, to in found.items() if to}}


def _write_cors(cors: Cors, max_age: int | None) -> Json:
    found = {
        "allowOrigins": list(cors.origins),
        "allowMethods": list(cors.methods),
        "allowHeaders": list(cors.headers),
        "exposeHeaders": list(cors.expose),
        "allowCredentials": cors.credentials,
        "maxAge": max_age,
    }
    return {key: to for key, to in found.items() if to}


def _write_rule_fields(one: _IngressConversion, filters: list[Json]) -> Json:
    values = one.values
    found: Json = {}
    if filters:
        found["filters"] = filters
    if (server := values.get_number("timeout-server")) is not None:
        found["timeouts"] = {"request": f"{server}ms"}
    if (retries := values.get_number("retries")) is not None:
        found["retry"] = {"attempts": retries}
    if values.get_text("affinity") == "cookie":
        session: Json = {"type": "Cookie"}
        if name := values.get_text("session-cookie-name"):
            session["sessionName"] = name
        if age := values.get_number("session-cookie-max-age"):
            session |= {"absoluteTimeout": f"{age}s", "cookieConfig": {"lifetimeType": "Permanent"}}
        found["sessionPersistence"] = session
    return found
