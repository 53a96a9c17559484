"""The lab: a small cluster of network namespaces, with echo servers in its Pods and probes that ask them.

Importing the package loads nothing, because the echo server starts from here, also on slow kernels.
"""
