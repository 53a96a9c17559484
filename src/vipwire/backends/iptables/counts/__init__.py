"""What the rules of iptables mode have counted."""
