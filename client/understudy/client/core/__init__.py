"""The client's decisions, without I/O: which request, to whom, what its reply means, and whether to try again."""
