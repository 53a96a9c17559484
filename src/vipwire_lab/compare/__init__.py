"""Compares all modes on the same Services and packets: `vipwire lab compare`, and `lab tour` to see each.

Each mode runs in its own lab, one after the other; a mode that this machine's kernel lacks runs in a guest kernel
(`vipwire_lab.guest_kernel`), if one can boot.
"""
