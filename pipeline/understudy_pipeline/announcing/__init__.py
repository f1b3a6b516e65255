"""`announce`: the one call in a Spark job. It sends store names and commit hints to the nodes.

Users import it as `understudy_pipeline.announce`. This package is not called `announce`: it would hide the function.
"""
