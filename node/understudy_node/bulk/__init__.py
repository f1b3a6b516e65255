"""Bulk parts of stores, made in a process of its own: many rows at once, column by column."""
