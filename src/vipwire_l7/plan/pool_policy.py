"""Reads the annotations of an Ingress as the policy of its pools, and as a canary."""

import re
from collections.abc import Callable
from typing import Final

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.plan.annotations import AnnotationValues
from vipwire_l7.plan.policy import (
    Affinity,
    Algorithm,
    BackendProtocol,
    Balance,
    Canary,
    Check,
    Cors,
    Hsts,
    Limit,
    Login,
    Policy,
    ProxyProtocol,
    Redirect,
    Rewrite,
    SameSite,
)
from vipwire_l7.plan.sites import ObjectField
from vipwire_l7.watch.objects import PathRule, PathType, Secret

_TIMEOUTS = ("connect", "server", "queue", "tunnel")
_DIGEST: Final = r"\$(?:1|[56](?:\$rounds=\d{1,5})?|2[aby]\$(?:0\d|10)|y\$j[./0-9A][./0-9A-T])\$[A-Za-z0-9./$]{8,200}"
"""Hashes of crypt(5) whose check takes at most 0.1 s: a check blocks a thread of HAProxy, which tenants share."""
_USER: Final = re.compile(rf"([A-Za-z0-9._@-]{{1,64}}):({_DIGEST})")
APPLICATIONS = {
    "kubernetes.io/h2c": BackendProtocol.H2,
    "grpc": BackendProtocol.H2,
    "https": BackendProtocol.HTTPS,
    "kubernetes.io/wss": BackendProtocol.HTTPS,
}


def read_policy(annotations: AnnotationValues, login: Login | None) -> Policy:
    """Read the settings for all paths of an Ingress. `https`, `rewrite` and a port's protocol depend on the path."""
    return Policy(
        affinity=_read_affinity(annotations),
        balance=_read_balance(annotations),
        protocol=BackendProtocol(annotations("backend-protocol", "http")),
        proxy_protocol=ProxyProtocol(annotations("proxy-protocol", "no")),
        timeouts=tuple((name, time) for name in _TIMEOUTS if (time := annotations(f"timeout-{name}", 0))),
        retries=annotations.get_number("retries"),
        redispatch=annotations.is_not_false("redispatch"),
        check=_read_health_check(annotations),
        pod_connections=annotations.get_number("pod-connections"),
        limit=_read_limit(annotations),
        allow=annotations("allow-source-range", ()),
        deny=annotations("deny-source-range", ()),
        https=annotations.is_true("force-ssl-redirect"),
        redirect=read_redirect(annotations),
        root=annotations("app-root", ""),
        hsts=read_hsts(annotations),
        set_request=(*annotations("set-request-headers", ()), *_read_host_header(annotations)),
        remove_request=annotations("remove-request-headers", ()),
        set_response=annotations("set-response-headers", ()),
        remove_response=annotations("remove-response-headers", ()),
        body_size=annotations("body-size", 0) or None,
        login=login,
        cors=read_cors(annotations),
    )


def choose_protocol(application: str, policy: Policy) -> BackendProtocol:
    """Choose the protocol of endpoints: an annotation wins over the port's `appProtocol`."""
    return (
        policy.protocol
        if policy.protocol is not BackendProtocol.HTTP
        else APPLICATIONS.get(application, BackendProtocol.HTTP)
    )


def read_rewrite(rule: PathRule, annotations: AnnotationValues) -> Rewrite | None:
    """Read a path's rewrite.

    With groups ($1) or a regular expression the rewrite replaces the whole path, as ingress-nginx does; so does
    ingress-nginx's own annotation always. vipwire's without groups replaces the prefix only, and keeps the rest.
    """
    target = annotations.get_text("rewrite-target")
    if target is None:
        return None
    if is_expression(rule, annotations):
        return Rewrite(f"^{rule.path.removeprefix('^')}.*$", target.replace("$", "\\"))
    escaped = re.escape(rule.path.rstrip("/")).replace("'", "\\x27")
    if annotations.nginx_rewrite or rule.type is PathType.EXACT:
        return Rewrite("^.*$", target)
    return Rewrite(f"^{escaped}/?(.*)$", f"{target.rstrip('/')}/\\1")


def is_expression(rule: PathRule, annotations: AnnotationValues) -> bool:
    """Report whether a path is a regular expression: only ImplementationSpecific paths may be one."""
    if rule.type is not PathType.IMPLEMENTATION_SPECIFIC:
        return False
    # ingress-nginx reads a path as an expression if the rewrite uses its groups.
    captured = annotations.nginx_rewrite and "$" in annotations("rewrite-target", "")
    return annotations.is_not_false("use-regex") if captured else annotations.is_true("use-regex")


def read_canary(annotations: AnnotationValues) -> Canary | None:
    if not annotations.is_true("canary"):
        return None
    header, value = annotations("canary-by-header", ""), annotations("canary-by-header-value", "")
    return Canary(annotations("canary-weight", 0), header, value, annotations("canary-by-cookie", ""))


def find_user_secret(namespace: str, annotations: AnnotationValues) -> ObjectName | None:
    wanted = annotations.get_text("auth-secret")
    if wanted is None:
        return None
    other, _, name = wanted.rpartition("/")
    return ObjectName(other or namespace, name)


def read_login(
    owner: ObjectField, annotations: AnnotationValues, secret: Callable[[ObjectName], Secret | None], closed: str
) -> tuple[Login | None, tuple[Problem, ...], bool]:
    """Read the users of an object. The last value is true if the object has no valid users: deny the object.

    `secret` looks one up; `closed` ends the message, such as "the Ingress answers 503".
    """
    found = find_user_secret(owner.name.namespace, annotations)
    if found is None:
        return None, (), False

    def make_problem(message: str) -> Problem:
        return Problem(owner.kind, owner.name, owner.field, message)

    if found.namespace != owner.name.namespace:
        return None, (make_problem(f"{found}: the Secret must be in the same namespace; {closed}"),), True
    lines = _list_user_lines(secret(found), annotations("auth-secret-type", "auth-file"))
    matches = [_USER.fullmatch(line) for line in lines]
    users = tuple((match[1], match[2]) for match in matches if match)
    problems = []
    if len(users) < len(lines):
        message = (
            f"Secret {found}: {len(lines) - len(users)} lines are not user:hash "
            "(allowed: bcrypt, which htpasswd -B makes, of cost 10 at most; SHA-512, SHA-256 of 99999 rounds at most)"
        )
        problems.append(make_problem(message))
    if not users:
        where = "in its key `auth`" if annotations.get_text("auth-secret-type") != "auth-map" else "as its keys"
        problems.append(make_problem(f"Secret {found} has no users {where}; {closed}"))
    return Login(annotations("auth-realm", "Restricted"), users), tuple(problems), not users


def _list_user_lines(secret: Secret | None, kind: str) -> list[str]:
    """Return the lines `user:hash` of a Secret: from its key `auth`, or (auth-map) from its keys, the users."""
    if secret is None:
        return []
    if kind == "auth-map":
        return [f"{user}:{digest.decode(errors='replace').strip()}" for user, digest in secret.data.items()]
    return secret.data.get("auth", b"").decode(errors="replace").split()


def _read_affinity(annotations: AnnotationValues) -> Affinity | None:
    if annotations.get_text("affinity") != "cookie":
        return None
    same_site = annotations.get_text("session-cookie-samesite")
    return Affinity(
        name=annotations("session-cookie-name", ""),
        path=annotations("session-cookie-path", "/"),
        max_age=annotations.get_number("session-cookie-max-age"),
        same_site=SameSite(same_site) if same_site else None,
        secure=annotations.is_true("session-cookie-secure"),
        change_on_failure=annotations.is_not_false("session-cookie-change-on-failure"),
    )


def _read_balance(annotations: AnnotationValues) -> Balance:
    header = annotations("balance-header", "")
    algorithm = Algorithm(annotations("balance", "header" if header else "roundrobin"))
    if algorithm is Algorithm.HEADER and not header:
        return Balance()
    return Balance(algorithm, header if algorithm is Algorithm.HEADER else "")


def _read_health_check(annotations: AnnotationValues) -> Check | None:
    path = annotations.get_text("health-check-path")
    if path is None:
        return None
    rise, fall = annotations("health-check-rise", 2), annotations("health-check-fall", 3)
    return Check(path, annotations("health-check-interval", 2000), rise, fall)


def _read_limit(annotations: AnnotationValues) -> Limit | None:
    names = ("limit-rps", "limit-rpm", "limit-connections")
    per_second, per_minute, connections = map(annotations.get_number, names)
    return Limit(per_second, per_minute, connections) if per_second or per_minute or connections else None


def read_redirect(annotations: AnnotationValues) -> Redirect | None:
    for kind, code in (("permanent", 301), ("temporal", 302)):
        where = annotations.get_text(f"{kind}-redirect")
        if where is not None:
            location = where.removesuffix("$request_uri")
            return Redirect(location, annotations(f"{kind}-redirect-code", code), location != where)
    return None


def _read_host_header(annotations: AnnotationValues) -> tuple[tuple[str, str], ...]:
    host = annotations.get_text("upstream-vhost")
    return (("Host", host),) if host else ()


def read_hsts(annotations: AnnotationValues) -> Hsts | None:
    if not annotations.is_true("hsts"):
        return None
    age = annotations("hsts-max-age", Hsts().max_age)
    return Hsts(age, annotations.is_true("hsts-include-subdomains"), annotations.is_true("hsts-preload"))


def read_cors(annotations: AnnotationValues) -> Cors | None:
    if not annotations.is_true("cors"):
        return None
    default = Cors()
    return Cors(
        annotations("cors-allow-origin", default.origins),
        annotations("cors-allow-methods", default.methods),
        annotations("cors-allow-headers", default.headers),
        annotations("cors-expose-headers", ()),
        annotations.is_true("cors-allow-credentials"),
        annotations("cors-max-age", default.max_age),
    )
