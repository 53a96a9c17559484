"""What a proxy needs before its first sync: the machine, the mode, the claim, the record."""
