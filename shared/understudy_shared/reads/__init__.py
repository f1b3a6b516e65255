"""Requests for reads, and their answers: bounds, positions, cursors, and the hop between router and node."""
