"""`vipwire sysdump`: one archive for a bug report.

command ─▶ archive ─▶ facts      versions, the kernel, configuration, check, status, rules, metrics, logs, HAProxy
               │      objects    Services, EndpointSlices, Nodes, Ingresses, Gateways, Events; never Secrets
               └────▶ redact     what looks like a secret, or is one of this machine, is left out of all of it
"""
