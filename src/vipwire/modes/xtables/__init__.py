"""iptables for all modes that write its rules: the rules' words, their effect on a packet, and the programs."""
