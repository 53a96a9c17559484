"""ipvs mode explained: a packet's way through chains, sets and virtual servers."""
