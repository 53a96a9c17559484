"""The lab: a small cluster made of network namespaces, with echo servers in its Pods and probes that ask them.

Importing the package loads nothing: the echo server starts from here, once per lab, also on slow kernels.
"""
