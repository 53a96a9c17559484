"""Base chains of other programs that the kernel calls before vipwire's, and the effects of their rules."""
