"""What this machine is and allows: kernel, settings, addresses, OOM score. The rest of vipwire asks here."""
