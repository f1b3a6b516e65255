"""One process that serves many applications: each is opened by a thread of its own, and served whole."""
