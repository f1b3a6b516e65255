"""Several processes of one service: a supervisor, and worker processes that each are a whole service.

`supervisor.py` runs in the process that the user started, `worker.py` in each worker process.
"""
