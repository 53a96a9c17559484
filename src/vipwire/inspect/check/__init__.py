"""`vipwire check`: the requirements that this machine lacks, and the remedies."""
