"""`vipwire ingress`: HTTP in front of Services. vipwire decides, HAProxy carries the traffic.

plan/     pure: which site and path goes to which pool, with which policy; which certificates are fit
"""
