"""Explains ipvs mode: a packet's way through chains, ipsets and virtual servers."""
