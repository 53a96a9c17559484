"""Commands that show the plan and the kernel's objects, without a running proxy.

They read the objects (manifests or API server), plan as the proxy does, and read the kernel through the protocol of
all modes. No mode is named here.

    source     objects, read once or followed      ┐
    situation  plans, desired and observed objects ├▶ document (plain values, stable names) ─▶ table, JSON, YAML
    packet     reads `default/web:http`            ┘
"""
