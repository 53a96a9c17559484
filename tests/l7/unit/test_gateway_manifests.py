"""Objects of the Gateway API in files."""

from vipwire_l7.gateway.watch.kinds import RESOURCES, make_manifest_reader
from vipwire_l7.watch.objects import IngressKind

EMPTY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, labels: }
spec:
  gatewayClassName: vipwire
  addresses:
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: ~}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: edge}]
  hostnames:
  rules:
  - matches:
    filters: [{type: CORS, cors: {allowOrigins: ["https://a.org"], allowHeaders: }}]
    backendRefs: [{name: web, port: 80}]
"""


def test_keys_without_a_value_say_nothing() -> None:
    """An API server leaves them out."""
    found = make_manifest_reader(RESOURCES).read(EMPTY, "gateway.yaml")
    assert [each.kind for each in found.entries] == [IngressKind.GATEWAY, IngressKind.HTTP_ROUTE]
    assert [each.problems for each in found.entries] == [(), ()]


def test_values_of_another_type_are_told() -> None:
    (entry, _) = (
        make_manifest_reader(RESOURCES).read(EMPTY.replace("addresses:", "addresses: 7"), "gateway.yaml").entries
    )
    ((problem,), objects) = entry.problems, entry.objects
    assert (problem.field, objects) == ("spec.addresses", ())
