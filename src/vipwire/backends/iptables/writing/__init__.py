"""How a difference gets into the kernel: by the tools' text, or as the kernel's own structures."""
