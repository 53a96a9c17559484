"""What `vipwire connectivity test` asks, by the Services and this Node's addresses."""

from vipwire_lab.connectivity.asking import build_checks

V4, V6 = "10.96.0.9", "2001:db8:10::9"
SERVICES = [
    {
        "metadata": {"name": name},
        "spec": {"clusterIPs": [V4, V6], "ports": [{"protocol": each, "nodePort": 30080} for each in ("TCP", "UDP")]},
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.64"}, {"ip": "2001:db8:100::40"}]}},
    }
    for name in ("cluster-ip", "node-port", "load-balancer", "external-ip")
]


def test_each_address_of_a_family_that_the_node_lacks_is_skipped_once() -> None:
    checks = build_checks(SERVICES, ["192.0.2.1"], ["IPv4"])
    assert {check.target is None or ":" not in check.target.address for check in checks} == {True}
    assert [(check.service, check.skip) for check in checks if check.skip] == [
        *((name, f"{V6}: this Node has no IPv6 address") for name in ("cluster-ip", "node-port", "load-balancer")),
        ("load-balancer", "2001:db8:100::40: this Node has no IPv6 address"),
        ("external-ip", f"{V6}: this Node has no IPv6 address"),
        ("external-ip", "2001:db8::253: this Node has no IPv6 address"),
    ]
    both = build_checks(SERVICES, ["192.0.2.1", "2001:db8::1"], ["IPv4", "IPv6"])
    assert not any(check.skip for check in both)
    assert set(both) > {check for check in checks if not check.skip}
