"""`vipwire sysdump`: one archive for a bug report.

command ─▶ archive ─▶ facts      versions, the kernel, configuration, check, status, rules, metrics, logs, HAProxy
               │      objects    Services, EndpointSlices, Nodes, Ingresses, Gateways, Events; never Secrets
               └────▶ redact     removes this machine's secrets, and texts in the form of a secret, from all files
"""
