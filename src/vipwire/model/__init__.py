"""The words of the whole program, as frozen values: no layer above may invent a second form of one."""
