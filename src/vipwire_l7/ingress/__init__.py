"""`vipwire ingress`: HTTP in front of Services. vipwire decides, HAProxy carries the traffic.

watch/    Ingresses, classes, Services, slices and Secrets, from an API server or manifests
plan/     pure: which site and path goes to which pool, with which policy; which certificates are fit
run/      the child process, its sockets and its files; the loop, status, Events, metrics
"""
