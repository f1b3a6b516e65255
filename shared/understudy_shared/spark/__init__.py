"""Spark's key world without a JVM: schemas, UnsafeRow bytes, the partitioner's hash, and JSON of Spark values.

Everything here is pure (no I/O, no clock) and compiled per schema, because every lookup runs it on the hot path.
"""
