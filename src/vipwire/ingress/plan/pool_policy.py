"""From the annotations of an Ingress to the policy of its pools, and to its part as a canary."""

import re
from collections.abc import Mapping

from vipwire.ingress.plan.annotations import AnnotationValues
from vipwire.ingress.plan.policy import (
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
from vipwire.ingress.watch.objects import Ingress, PathRule, PathType, Secret
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem

_TIMEOUTS = ("connect", "server", "queue", "tunnel")
_USER = re.compile(r"([A-Za-z0-9._@-]{1,64}):(\$(?:1|5|6|2a|2b|2y|y)\$[A-Za-z0-9./$=,-]{8,200})")
_APPLICATIONS = {
    "kubernetes.io/h2c": BackendProtocol.H2,
    "grpc": BackendProtocol.H2,
    "https": BackendProtocol.HTTPS,
    "kubernetes.io/wss": BackendProtocol.HTTPS,
}


def general_policy(asked: AnnotationValues, login: Login | None) -> Policy:
    """Make what holds for all paths of an Ingress. `https`, `rewrite` and a port's protocol depend on more."""
    return Policy(
        affinity=_affinity(asked),
        balance=_balance(asked),
        protocol=BackendProtocol(asked("backend-protocol", "http")),
        proxy_protocol=ProxyProtocol(asked("proxy-protocol", "no")),
        timeouts=tuple((name, asked(f"timeout-{name}")) for name in _TIMEOUTS if asked(f"timeout-{name}")),
        retries=asked("retries"),
        redispatch=asked.unless_denied("redispatch"),
        check=_check(asked),
        pod_connections=asked("pod-connections"),
        limit=_limit(asked),
        allow=asked("allow-source-range", ()),
        deny=asked("deny-source-range", ()),
        https=asked.granted("force-ssl-redirect"),
        redirect=_redirect(asked),
        root=asked("app-root", ""),
        hsts=_hsts(asked),
        set_request=(*asked("set-request-headers", ()), *_virtual_host(asked)),
        remove_request=asked("remove-request-headers", ()),
        set_response=asked("set-response-headers", ()),
        remove_response=asked("remove-response-headers", ()),
        body_size=asked("body-size") or None,
        login=login,
        cors=_cors(asked),
    )


def protocol_of(application: str, policy: Policy) -> BackendProtocol:
    """Choose what endpoints speak: an annotation wins over the port's `appProtocol`."""
    return (
        policy.protocol
        if policy.protocol is not BackendProtocol.HTTP
        else _APPLICATIONS.get(application, BackendProtocol.HTTP)
    )


def rewrite_of(rule: PathRule, asked: AnnotationValues) -> Rewrite | None:
    """Make a path's rewrite.

    With groups ($1) or a regular expression the whole path is replaced, as ingress-nginx does; so it is with its own
    annotation in any case. Ours without groups replaces the prefix only, and keeps the rest.
    """
    target = asked("rewrite-target")
    if target is None:
        return None
    if is_expression(rule, asked):
        return Rewrite(f"^{rule.path.removeprefix('^')}.*$", target.replace("$", "\\"))
    escaped = re.escape(rule.path.rstrip("/")).replace("'", "\\x27")
    if asked.nginx_rewrite or rule.type is PathType.EXACT:
        return Rewrite("^.*$", target)
    return Rewrite(f"^{escaped}/?(.*)$", f"{target.rstrip('/')}/\\1")


def is_expression(rule: PathRule, asked: AnnotationValues) -> bool:
    """Report whether a path is a regular expression: only ImplementationSpecific ones may be."""
    if rule.type is not PathType.IMPLEMENTATION_SPECIFIC:
        return False
    # ingress-nginx takes a path for an expression where the rewrite wants what it has captured.
    captured = asked.nginx_rewrite and "$" in asked("rewrite-target")
    return asked.unless_denied("use-regex") if captured else asked.granted("use-regex")


def canary_of(asked: AnnotationValues) -> Canary | None:
    """Make an Ingress's part as a canary."""
    if not asked("canary"):
        return None
    header, value = asked("canary-by-header", ""), asked("canary-by-header-value", "")
    return Canary(asked("canary-weight", 0), header, value, asked("canary-by-cookie", ""))


def users_of(ingress: Ingress, asked: AnnotationValues) -> ObjectName | None:
    """Name the Secret that has the users of an Ingress, if it wants any."""
    wanted = asked("auth-secret")
    if wanted is None:
        return None
    namespace, _, name = wanted.rpartition("/")
    return ObjectName(namespace or ingress.name.namespace, name)


def login_of(
    ingress: Ingress, asked: AnnotationValues, secrets: Mapping[ObjectName, Secret]
) -> tuple[Login | None, tuple[Problem, ...], bool]:
    """Read the users of an Ingress; the last value tells whether it must be closed, for there are none."""
    found = users_of(ingress, asked)
    if found is None:
        return None, (), False
    field = "metadata.annotations[vipwire.io/auth-secret]"
    if found.namespace != ingress.name.namespace:
        message = f"{found}: a Secret of another namespace is not read; the Ingress is closed"
        return None, (Problem("Ingress", ingress.name, field, message),), True
    lines = _lines_of(secrets.get(found), asked("auth-secret-type", "auth-file"))
    matches = [_USER.fullmatch(line) for line in lines]
    users = tuple((match[1], match[2]) for match in matches if match)
    problems = []
    if len(users) < len(lines):
        message = (
            f"Secret {found}: {len(lines) - len(users)} lines are not user:hash "
            "(allowed: bcrypt, which htpasswd -B makes, SHA-512, SHA-256)"
        )
        problems.append(Problem("Ingress", ingress.name, field, message))
    if not users:
        where = "in its key `auth`" if asked("auth-secret-type") != "auth-map" else "as its keys"
        message = f"Secret {found} has no users {where}; the Ingress is closed"
        problems.append(Problem("Ingress", ingress.name, field, message))
    return Login(asked("auth-realm", "Restricted"), users), tuple(problems), not users


def _lines_of(secret: Secret | None, kind: str) -> list[str]:
    """Return the lines `user:hash` of a Secret: they are in its key `auth`, or (auth-map) its keys are the users."""
    if secret is None:
        return []
    if kind == "auth-map":
        return [f"{user}:{digest.decode(errors='replace').strip()}" for user, digest in secret.data.items()]
    return secret.data.get("auth", b"").decode(errors="replace").split()


def _affinity(asked: AnnotationValues) -> Affinity | None:
    if asked("affinity") != "cookie":
        return None
    same_site = asked("session-cookie-samesite")
    return Affinity(
        name=asked("session-cookie-name", "VIPWIRE"),
        max_age=asked("session-cookie-max-age"),
        same_site=SameSite(same_site) if same_site else None,
        secure=asked.granted("session-cookie-secure"),
        change_on_failure=asked.unless_denied("session-cookie-change-on-failure"),
    )


def _balance(asked: AnnotationValues) -> Balance:
    header = asked("balance-header", "")
    algorithm = Algorithm(asked("balance", "header" if header else "roundrobin"))
    if algorithm is Algorithm.HEADER and not header:
        return Balance()
    return Balance(algorithm, header if algorithm is Algorithm.HEADER else "")


def _check(asked: AnnotationValues) -> Check | None:
    path = asked("health-check-path")
    if path is None:
        return None
    rise, fall = asked("health-check-rise", 2), asked("health-check-fall", 3)
    return Check(path, asked("health-check-interval", 2000), rise, fall)


def _limit(asked: AnnotationValues) -> Limit | None:
    per_second, per_minute, connections = (asked(f"limit-{name}") for name in ("rps", "rpm", "connections"))
    return Limit(per_second, per_minute, connections) if per_second or per_minute or connections else None


def _redirect(asked: AnnotationValues) -> Redirect | None:
    for kind, code in (("permanent", 301), ("temporal", 302)):
        where = asked(f"{kind}-redirect")
        if where is not None:
            location = where.removesuffix("$request_uri")
            return Redirect(location, asked(f"{kind}-redirect-code", code), location != where)
    return None


def _virtual_host(asked: AnnotationValues) -> tuple[tuple[str, str], ...]:
    host = asked("upstream-vhost")
    return (("Host", host),) if host else ()


def _hsts(asked: AnnotationValues) -> Hsts | None:
    if not asked("hsts"):
        return None
    age = asked("hsts-max-age", Hsts().max_age)
    return Hsts(age, asked.granted("hsts-include-subdomains"), asked.granted("hsts-preload"))


def _cors(asked: AnnotationValues) -> Cors | None:
    if not asked("cors"):
        return None
    default = Cors()
    return Cors(
        asked("cors-allow-origin", default.origins),
        asked("cors-allow-methods", default.methods),
        asked("cors-allow-headers", default.headers),
        asked("cors-expose-headers", ()),
        asked.granted("cors-allow-credentials"),
        asked("cors-max-age", default.max_age),
    )
