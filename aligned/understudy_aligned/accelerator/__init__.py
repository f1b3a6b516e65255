"""The Python side of the accelerator jar, by which Spark reads the aligned source without Python workers.

The jar starts these processes and talks to them by their pipes. They import no PySpark.
"""
