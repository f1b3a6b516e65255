"""SQL over stores, by DuckDB in the reader's own process: the command `understudy sql`, and `query` for programs.

DuckDB and pyarrow are imported when a statement runs; they come with the extra `sql`.
"""
