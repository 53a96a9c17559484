"""iptables as every mode that writes its rules meets it: the words of rules, and the programs that read and write."""
