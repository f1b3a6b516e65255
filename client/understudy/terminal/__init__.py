"""Pages of text, tables, rows in several forms, errors and exit codes: the output of commands."""
