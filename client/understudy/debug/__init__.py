"""`understudy debug bundle`: one file for a bug report."""
