"""nf_tables over nfnetlink, without I/O: encodes transactions and elements, decodes dumps.

`wire` has the numbers, `encode` the operations, `elements` the members of sets (both ways, fast), `expressions` the
expressions of rules, `decode` the other dumps, `userdata` nft's notes in objects.
"""
