"""Statements that BI tools send, as far as their sources and logs show them."""

from __future__ import annotations

GRAFANA = """
SELECT 1;
SELECT DISTINCT TABLE_SCHEMA from information_schema.TABLES where TABLE_TYPE != 'SYSTEM VIEW' ORDER BY
TABLE_SCHEMA;
SELECT DISTINCT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'understudy' ORDER BY TABLE_NAME;
SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_NAME = 'op0' ORDER BY COLUMN_NAME;
SELECT column_name AS 'text' FROM information_schema.columns WHERE table_schema = DATABASE() LIMIT 5;
SELECT UNIX_TIMESTAMP(ts) DIV 3600 * 3600 AS 'time', avg(n) AS `value` FROM understudy.op0 WHERE ts BETWEEN
FROM_UNIXTIME(1356998400) AND FROM_UNIXTIME(1357084800) GROUP BY time ORDER BY time;
SELECT   ts AS 'time',   n AS 'flights' FROM op0 WHERE ts >= FROM_UNIXTIME(1356998400) ORDER BY ts LIMIT 50
"""
"""Grafana's data source: its health, its editor, a series and a table with their macros filled in."""

SUPERSET = """
SELECT @@transaction_isolation;
SELECT CAST('test plain returns' AS CHAR(60)) AS anon_1;
SHOW VARIABLES LIKE 'sql_mode';
SHOW FULL TABLES FROM `understudy`;
SHOW CREATE TABLE `understudy`.`op0`;
SELECT CONNECTION_ID();
SELECT DATE_ADD(DATE(ts), INTERVAL HOUR(ts) HOUR) AS __timestamp, COUNT(*) AS `COUNT(*)` FROM `op0` WHERE ts >=
STR_TO_DATE('2013-01-01 00:00:00.000000', '%Y-%m-%d %H:%i:%s.%f') AND ts < STR_TO_DATE('2013-01-02
00:00:00.000000', '%Y-%m-%d %H:%i:%s.%f') GROUP BY DATE_ADD(DATE(ts), INTERVAL HOUR(ts) HOUR) ORDER BY
`COUNT(*)` DESC LIMIT 10000;
SELECT DATE(DATE_SUB(ts, INTERVAL DAYOFWEEK(DATE_SUB(ts, INTERVAL 1 DAY)) - 1 DAY)) AS __timestamp FROM op0
LIMIT 5;
SELECT DATE(DATE_SUB(ts, INTERVAL DAYOFMONTH(ts) - 1 DAY)), DATE(DATE_SUB(ts, INTERVAL DAYOFYEAR(ts) - 1 DAY)),
MAKEDATE(YEAR(ts), 1) + INTERVAL QUARTER(ts) QUARTER - INTERVAL 1 QUARTER FROM op0 LIMIT 5;
SELECT DATE_ADD(DATE(ts), INTERVAL (HOUR(ts)*60*60 + MINUTE(ts)*60 + SECOND(ts)) SECOND) FROM op0 LIMIT 0, 5;
SELECT * FROM (SELECT k, n FROM op0 WHERE k IN ('k3', 'k12') AND n IS NOT NULL) AS virtual_table LIMIT 1001;
SELECT `Group`, `value.n` FROM op1 WHERE `key.n` = 3 FOR UPDATE
"""
"""Superset: SQLAlchemy's beginning, its time grains, its filters, its limits."""

OTHERS = """
SELECT @@version, @@version_comment, @@max_allowed_packet, @@session.auto_increment_increment LIMIT 1;
SHOW SESSION STATUS LIKE 'Ssl_cipher';
SHOW VARIABLES WHERE Variable_name IN ('lower_case_table_names', 'version');
SHOW KEYS FROM op0;
SHOW FULL COLUMNS FROM op0 LIKE 'k%';
DESCRIBE understudy.op0;
SHOW TABLE STATUS FROM understudy LIKE 'op%';
SHOW PROCEDURE STATUS;
SELECT t.TABLE_NAME, c.COLUMN_NAME, k.CONSTRAINT_NAME FROM information_schema.TABLES t JOIN
information_schema.COLUMNS c USING (TABLE_SCHEMA, TABLE_NAME) LEFT JOIN information_schema.KEY_COLUMN_USAGE k
USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME) WHERE t.TABLE_SCHEMA COLLATE utf8mb4_bin NOT IN ('mysql', 'sys');
SET NAMES 'utf8mb4' COLLATE 'utf8mb4_unicode_ci';
SET SESSION sql_mode = 'ANSI', autocommit = 1, net_write_timeout = 600;
START TRANSACTION;
ROLLBACK;
EXPLAIN SELECT * FROM op0
"""
"""Metabase, DBeaver and the mysql client."""


def statements(text: str) -> list[str]:
    """The statements of a text."""
    return [each.strip() for each in text.split(";\n")]
