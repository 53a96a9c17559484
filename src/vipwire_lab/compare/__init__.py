"""All modes side by side on the same Services and packets: `vipwire lab compare`, and `lab tour` to look at each.

Every mode has a lab and a proxy of its own, one after the other. A mode that this machine's kernel cannot run is run
in a guest with a kernel of its own (`vipwire_lab.guest_kernel`), if that can.
"""
