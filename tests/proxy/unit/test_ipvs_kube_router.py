"""kube-router's annotations, from the manifest on."""

import pytest
from tests.fakes.documents import read_document
from tests.fakes.objects import service

from vipwire.model.service import Service, TrafficPolicy


@pytest.mark.parametrize(
    ("value", "policy"),
    [("true", TrafficPolicy.LOCAL), ("false", TrafficPolicy.CLUSTER), ("", TrafficPolicy.CLUSTER)],
)
def test_local_is_the_external_policy_only(value: str, policy: TrafficPolicy) -> None:
    document = service(externalIPs=["198.51.100.1"])
    document["metadata"]["annotations"]["kube-router.io/service.local"] = value
    (found,), problems = read_document("Service", document)
    assert problems == ()
    assert isinstance(found, Service)
    assert (found.external_policy, found.internal_policy) == (policy, TrafficPolicy.CLUSTER)
