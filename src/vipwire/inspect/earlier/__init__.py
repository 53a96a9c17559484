"""Base chains of other programs that the kernel calls before vipwire's, and what their rules may do to a packet."""
