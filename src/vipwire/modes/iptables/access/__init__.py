"""How rules get into the kernel and out of it: as the tools' text, or as the kernel's own structures."""
