"""nf_tables over nfnetlink, sans I/O: operations of a transaction and elements in, dumps out.

`wire` knows the numbers, `encode` the operations, `elements` the members of sets (both ways, fast), `expressions`
what rules are made of, `decode` the other dumps, `userdata` the notes that nft keeps in objects for its own listing.
"""
