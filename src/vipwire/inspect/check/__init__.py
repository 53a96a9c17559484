"""`vipwire check`: what this machine lacks, and the remedy."""
