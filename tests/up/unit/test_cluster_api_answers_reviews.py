"""What users ask about themselves: may I, what may I, who am I; and what is said where something is not served."""

from typing import Any

import pytest
from tests.up.unit.cluster_here import Here, in_cluster

AUTHORIZATION = "/apis/authorization.k8s.io/v1"
ACCESS = f"{AUTHORIZATION}/selfsubjectaccessreviews"
RULES = f"{AUTHORIZATION}/selfsubjectrulesreviews"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def about(verb: str, resource: str, subresource: str = "") -> dict[str, Any]:
    wanted = {"verb": verb, "resource": resource, "subresource": subresource, "namespace": "default"}
    return {"spec": {"resourceAttributes": wanted}}


@pytest.mark.parametrize(
    ("user", "question", "allowed"),
    [
        ("admin", about("*", "*"), True),
        ("admin", about("create", "services"), True),
        ("view", about("list", "services"), True),
        ("view", about("list", "secrets"), False),
        ("view", about("get", "*"), False),
        ("view", about("*", "services"), False),
        ("view", about("patch", "services", "status"), False),
        ("node", about("patch", "nodes", "status"), True),
        ("node", about("delete", "services"), False),
        ("nobody", about("get", "services"), False),
        ("view", {"spec": {"nonResourceAttributes": {"path": "/openapi/v2", "verb": "get"}}}, True),
        ("nobody", {"spec": {"nonResourceAttributes": {"path": "/openapi/v2", "verb": "get"}}}, False),
        ("nobody", {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}}}, True),
        ("admin", {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "post"}}}, False),
    ],
)
@in_cluster()
async def test_who_asks_is_told_what_the_server_would_do(
    here: Here, user: str, question: dict[str, Any], *, allowed: bool
) -> None:
    code, answer = await here.send("POST", ACCESS, question, user=user)
    assert (code, answer["kind"], answer["status"]) == (201, "SelfSubjectAccessReview", {"allowed": allowed})
    assert answer["spec"] == question["spec"]


@in_cluster()
async def test_all_that_somebody_may_and_who_it_is(here: Here) -> None:
    _, answer = await here.send("POST", RULES, {"spec": {"namespace": "default"}})
    assert answer["status"]["resourceRules"] == [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    _, answer = await here.send("POST", RULES, {"spec": {"namespace": "default"}}, user="view")
    rules = {rule["resources"][0]: rule["verbs"] for rule in answer["status"]["resourceRules"]}
    assert rules["services"] == rules["services/status"] == ["get", "list", "watch"]
    assert "secrets" not in rules
    _, answer = await here.send("POST", WHO, {}, user="node")
    assert answer["status"] == {"userInfo": {"username": "node", "groups": ["system:nodes"]}}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (ACCESS, {"spec": {}}, "exactly one of nonResourceAttributes or resourceAttributes"),
        (ACCESS, [], "not of kind SelfSubjectAccessReview of authorization.k8s.io/v1"),
        (ACCESS, {"kind": "Service"}, "not of kind SelfSubjectAccessReview of authorization.k8s.io/v1"),
        (ACCESS, {"spec": {"resourceAttributes": "all"}}, "spec.resourceAttributes"),
        (ACCESS, b"{", "the body of the request is not JSON"),
        (RULES, {"spec": 7}, "spec"),
    ],
)
@in_cluster()
async def test_a_question_that_is_none_is_refused(here: Here, path: str, body: Any, said: str) -> None:
    code, status = await here.send("POST", path, body)
    assert (code, said in status["message"]) == (400, True), status


@pytest.mark.attack
@in_cluster()
async def test_nobody_acts_as_somebody_else(here: Here) -> None:
    code, status = await here.send("GET", "/api/v1/services", **{"Impersonate-User": "viewer"})
    assert code == 403
    assert 'users "viewer" is forbidden: User "admin" cannot impersonate' in status["message"]


@in_cluster()
async def test_what_needs_a_kubelet_says_that_there_is_none(here: Here) -> None:
    code, status = await here.send("GET", "/api/v1/namespaces/default/pods/p/log")
    assert code == 404
    assert status["details"] == {}  # which kubectl debug looks into
    assert status["message"].endswith("pods/log is not available, because vipwire runs no Pods")
