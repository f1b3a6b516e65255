"""Several processes of one service: a supervisor, its worker processes, and what they say with one voice.

`supervisor.py` runs in the process that the user started, `worker.py` and `link.py` in each worker process.
"""
