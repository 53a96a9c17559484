"""The kinds of kernel objects that ipvs mode has, each read and written in one place."""
