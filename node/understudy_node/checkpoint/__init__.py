"""Reads the files of a Structured Streaming checkpoint: bytes in, frozen values out.

`files` is the only module that touches storage; the others parse what it read, or decide over names and values.
"""
