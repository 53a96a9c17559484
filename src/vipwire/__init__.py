"""vipwire: a Kubernetes service proxy that keeps Services as data in the kernel."""

__version__ = "0.2.0"
