"""Rules in the kernel's form: structs of matches and targets, expressions of nf_tables, legacy entries."""
