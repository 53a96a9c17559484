"""Rules as the kernel keeps them: structs of matches and targets, expressions of nf_tables, legacy entries."""
