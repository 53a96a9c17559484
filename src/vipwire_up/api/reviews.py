"""The reviews of a user's own rights, for kubectl auth can-i and whoami. They are not stored.

These are the three self reviews of authorization.k8s.io/v1 and authentication.k8s.io/v1: a client posts one like an
object, and gets it back with its status filled in. Discovery does not list them: clients know their paths.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.named_secrets import NamedSecrets
from vipwire_up.api.objects.errors import bad_request, forbidden_object
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.objects.schema import Type, read_types
from vipwire_up.api.serving import authorization
from vipwire_up.api.serving.authorization import User
from vipwire_up.store.record import Key

_AUTHORIZATION: Final = "authorization.k8s.io"
_AUTHENTICATION: Final = "authentication.k8s.io"
_TABLE: Final = """
ResourceAttributes | A request about objects.
  namespace string #1 | Namespace of the objects; empty means all, or none for objects without namespaces.
  verb string #2 | Verb: get, list, watch, create, update, patch, delete; * means all.
  group string #3 | API group of the objects.
  version string #4 | API version of the objects.
  resource string #5 | Resource name (plural) of the objects.
  subresource string #6 | Subresource of the objects.
  name string #7 | Name of one object; empty means all.
NonResourceAttributes | A request about a URL path.
  path string #1 | The URL path.
  verb string #2 | HTTP method in lower case.
SelfSubjectAccessReviewSpec | Request to check.
  resourceAttributes ResourceAttributes #1 | A request about objects.
  nonResourceAttributes NonResourceAttributes #2 | A request about a URL path.
kind SelfSubjectAccessReview | Check of whether the current user may send a request.
  spec SelfSubjectAccessReviewSpec #2 default={} | Request to check.
SelfSubjectRulesReviewSpec | Scope of the list.
  namespace string #1 | Namespace of the objects.
kind SelfSubjectRulesReview | List of the requests that the current user may send.
  spec SelfSubjectRulesReviewSpec #2 default={} | Scope of the list.
kind SelfSubjectReview | Attributes of the current user.
"""
_TYPES: Final = read_types(_TABLE, "io.k8s.api.authorization.v1", META)


@dataclass(frozen=True, slots=True)
class Review:
    """A kind of review; `answer` builds its status."""

    group: str
    kind: str
    answer: Callable[[User, Object, NamedSecrets], Object]

    @property
    def types(self) -> Mapping[str, Type]:
        return {self.kind: _TYPES[self.kind]}


def _answer_access_review(user: User, value: Object, named: NamedSecrets) -> Object:
    page, wanted = value_at(value, "spec", "nonResourceAttributes"), value_at(value, "spec", "resourceAttributes")
    if (page is None) == (wanted is None):
        raise bad_request("spec: exactly one of nonResourceAttributes or resourceAttributes must be specified")
    if page is not None:
        allowed = authorization.may_read_page(user, page.get("path", "")) and page.get("verb", "") in ("get", "head")
    else:
        what = "/".join(filter(None, (wanted.get("resource", ""), wanted.get("subresource", ""))))
        allowed = authorization.may_use(user, wanted.get("verb", ""), what)
        if allowed and authorization.may_read_only_named(user, what) and (name := wanted.get("name")):
            allowed = Key(SECRETS.id, wanted.get("namespace", ""), name) in named
    return {"allowed": allowed}


def _answer_rules_review(user: User, _value: Object, _named: NamedSecrets) -> Object:
    resources = [
        {"verbs": verbs, "apiGroups": [group], "resources": [what]}
        for verbs, group, what in authorization.list_rules(user)
    ]
    pages = [{"verbs": ["get"], "nonResourceURLs": list(authorization.list_allowed_pages(user))}]
    return {"resourceRules": resources, "nonResourceRules": pages, "incomplete": False}


def _answer_self_review(user: User, _value: Object, _named: NamedSecrets) -> Object:
    return {"userInfo": {"username": user.name, "groups": list(user.groups)}}


REVIEWS: Final = {
    f"/apis/{review.group}/v1/{review.kind.lower()}s": review
    for review in (
        Review(_AUTHORIZATION, "SelfSubjectAccessReview", _answer_access_review),
        Review(_AUTHORIZATION, "SelfSubjectRulesReview", _answer_rules_review),
        Review(_AUTHENTICATION, "SelfSubjectReview", _answer_self_review),
    )
}
"""The reviews by the path that they are posted to."""


def check_reviewer(review: Review, user: User) -> None:
    """Raise ApiError 403 for an anonymous user, before the body is parsed."""
    if user == authorization.ANONYMOUS:
        plural = f"{review.kind.lower()}s"
        why = (
            f'User "{user.name}" cannot create resource "{plural}" in API group "{review.group}" at the cluster scope'
        )
        raise forbidden_object(f"{plural}.{review.group}", "", why)


def answer_review(review: Review, user: User, body: Any, named: NamedSecrets) -> Object:
    said = {"apiVersion": f"{review.group}/v1", "kind": review.kind}
    if not isinstance(body, dict) or any(body.get(name, text) != text for name, text in said.items()):
        raise bad_request(f"the body of the request is not of kind {review.kind} of {review.group}/v1")
    value: Object = decode(body, _TYPES[review.kind], Findings())
    return value | said | {"status": review.answer(user, value, named)}
