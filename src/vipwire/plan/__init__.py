"""Plans what should be true, whatever mode makes it true: no mode is named here.

A plan has answered every question that does not depend on the mode: which endpoints, forward or drop or reject,
masquerade or not, whether a client on this node short-circuits a `Local` policy. A mode only translates it.
"""
