"""`vipwire gateway`: the Gateway API on the HAProxy of `vipwire ingress`. A second way to say what shall be served.

watch/  Gateways, routes, grants and policies, from an API server or manifests
plan/   pure: listeners and who may attach to them; routes to a plan; what statuses say
run/    the writer of statuses, the command; HAProxy is driven by `vipwire_l7.run`
"""
