"""Looking at what is planned and what the kernel holds, without a running proxy.

Everything here reads the objects (manifests or API server), plans them as the proxy would, and reads the kernel
through the protocol that every mode offers. No mode is named here.

    source     objects, read once or followed      ┐
    situation  plans, desired and observed objects ├▶ document (plain values, stable names) ─▶ table, JSON, YAML
    packet     the words of a packet               ┘
"""
