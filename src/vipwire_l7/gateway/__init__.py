"""`vipwire gateway`: the Gateway API, served by the HAProxy that `vipwire ingress` runs.

watch/ reads Gateways, routes, grants and policies from an API server or from manifests. plan/ is pure: it attaches
routes to listeners, plans them, and writes statuses. run/ writes the statuses to the API server and wires the
command; `vipwire_l7.run` drives HAProxy.
"""
