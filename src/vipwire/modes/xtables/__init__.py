"""iptables as every mode that writes its rules meets it: their words, what they do to a packet, and the programs."""
