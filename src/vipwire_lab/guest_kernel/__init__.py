"""Runs a command as root under a Linux kernel that has IPVS: `python -m vipwire_lab.guest_kernel -- COMMAND`.

Neither KVM nor a module of the machine's kernel is needed, and no network of the machine can be touched. The command
sees the machine's files under their own names and may change any of them: the changes live in memory and vanish with
the guest, but for those below directories that are named as writable. Its output is streamed, its input is empty, and
its exit status is returned. `GuestKernel` tells which kernels there are, `script` what the guest does.
"""

from vipwire_lab.guest_kernel.guest import MARK, Guest, GuestKernel, inside
from vipwire_lab.guest_kernel.running import obstacle, run

__all__ = ["MARK", "Guest", "GuestKernel", "inside", "obstacle", "run"]
