"""The knowledge that nodes and routers have of each other: which live, what they sent, and what is kept on disk."""
