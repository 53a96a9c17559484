"""Making it true: what the kernel holds, compared with what it should, is one transaction."""
