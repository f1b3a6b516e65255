"""The replica engine: one store partition's state as immutable views that answer gets and ordered scans.

It knows bytes and versions only: nothing of checkpoints, changelogs or HTTP.
"""
