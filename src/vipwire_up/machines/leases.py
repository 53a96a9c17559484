"""Names of the Leases that machines and API servers renew."""

from typing import Final

NODE_LEASES: Final = "kube-node-lease"
"""The namespace of the Leases by which machines say that they are alive; each has its Node's name."""
SERVERS: Final = "vipwire-server-"
"""How the Leases of API servers begin, in kube-system."""
