"""Runs a command as root under a Linux kernel with IPVS: `python -m vipwire_lab.guest_kernel -- COMMAND`.

Needs neither KVM nor kernel modules, and cannot touch the machine's network. The command sees the machine's files
under their own names; its changes stay in memory and vanish with the guest, except below writable directories. Its
output is streamed, its input is empty, its exit status is returned. `GuestKernel` lists the kernels, `script` the
guest's steps.
"""

from vipwire_lab.guest_kernel.guest import MARK, Guest, GuestKernel, current_guest_kernel
from vipwire_lab.guest_kernel.running import find_obstacle, run_in_guest

__all__ = ["MARK", "Guest", "GuestKernel", "current_guest_kernel", "find_obstacle", "run_in_guest"]
