"""`vipwire connectivity test`: Services of every kind, made, asked and removed.

objects    the namespace, the Services and their EndpointSlices     ┐
checks     what each address must answer                            ├▶ run ─▶ tables
names      what the cluster's DNS must answer                       │
cause      why a check failed, by the engine of `vipwire explain`   ┘
"""
