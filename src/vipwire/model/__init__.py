"""The shared vocabulary of all layers, as frozen values; no layer may define another form of one."""
