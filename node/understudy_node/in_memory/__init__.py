"""A node whose checkpoint is in memory, in the process of a test: only Spark, its storage and the network are missing.

`understudy.testing` starts it by its entry point.
"""
