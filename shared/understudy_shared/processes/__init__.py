"""Several processes of one service: a supervisor, its worker processes, and the answers that they give together.

`supervisor.py` runs in the process that the user started, `worker.py` and `link.py` in each worker process.
"""
