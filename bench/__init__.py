"""Benchmarks: what podbot costs, beside what one would use without it.

Run with ``make bench`` or ``python -m bench``; README.md tells the method. Nothing here is part of
the library, and nothing here may reach around its public names to look faster.
"""
