"""`vipwire ingress`: serves Ingresses with HAProxy. vipwire plans, HAProxy carries the traffic.

plan/ is pure: it decides which path of a site goes to which pool with which policy, and which certificates are valid.
"""
