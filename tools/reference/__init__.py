"""Writes the pages of `docs/reference/` that follow from the code: `python -m tools.reference`.

A test in tests/contract/docs/ holds the files to this, so that a page never says what the code does not.
"""
