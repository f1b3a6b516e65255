"""What a read asks for and what comes back: bounds, positions, cursors, and the hop between router and node."""
