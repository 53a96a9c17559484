"""Decides the endpoints, verdict and masquerading of each frontend, the same for all modes; names no mode.

A mode only translates the plan into kernel objects.
"""
