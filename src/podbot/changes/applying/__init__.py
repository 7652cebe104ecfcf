"""Bringing changes to the host and taking them back: plan, journal, locks, ledger, recovery.

`apply` and `undo` are the verbs; `placing` and `site` alone write into a target.
"""
