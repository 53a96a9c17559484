"""The kinds of kernel objects of ipvs mode; one module reads and writes each kind."""
