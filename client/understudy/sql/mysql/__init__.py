"""SQL over stores for tools that speak MySQL's protocol: `understudy sql --serve mysql`, over mysql-mimic.

mysql-mimic brings packets and commands of the protocol, sqlglot the dialect. They come with the extra `sql-server`.
"""
