"""The chains and rules of iptables mode, as text. Pure."""
