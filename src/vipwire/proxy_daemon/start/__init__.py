"""Steps before a proxy's first sync: machine settings, mode, claim, record."""
