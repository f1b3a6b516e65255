"""The atomic steps, as scripts that run inside Redis, and the values that they write (pure).

Every value begins with a header line: `us1 put`, `us1 owned {owner}`, `us1 fenced {term} {epoch}` or `us1 lease {term}
{owner}`; the payload follows. Owners are percent-encoded, so that the header is always one line. A value without such a
line was written by another program.

A script uses only the keys that it names, all of one application and thus on one shard, and publishes on its channel.
The value of another program is ignored, except under a lease: there it counts as a held lease, because two assignors
are worse than no assignor. Like a lease without renewals it ends: a node that wants the lease gives it the expiry of a
lease, and takes the lease afterwards.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import NamedTuple
from urllib.parse import quote, unquote

from understudy_shared.bus.base import LONGEST_EXPIRIES, LONGEST_LEFT_MS

MAX_HEADER_BYTES = 4096
"""Limit on a header line: an owner of 256 characters takes at most 3,072 bytes when encoded."""

PUT = b"us1 put\n"
_KINDS = frozenset((b"put", b"owned", b"fenced", b"lease"))


class OpenedValue(NamedTuple):
    """A value of the bus: its kind, the rest of its header line, and its payload."""

    kind: bytes
    fields: bytes
    payload: bytes


def owned(owner: str) -> bytes:
    """Return the header line of an owned value."""
    return _line(f"us1 owned {quote(owner, safe='')}")


def lease(owner: str, term: int) -> bytes:
    """Return the whole value of a lease."""
    return _line(f"us1 lease {term} {quote(owner, safe='')}")


def opened(value: bytes) -> OpenedValue | None:
    """Split a value into its parts; return None if another program wrote it."""
    end = value.find(b"\n", 0, MAX_HEADER_BYTES)
    mark, _, rest = value[: max(end, 0)].partition(b" ")
    kind, _, fields = rest.partition(b" ")
    return OpenedValue(kind, fields, value[end + 1 :]) if mark == b"us1" and kind in _KINDS else None


def holder_of(found: OpenedValue) -> str | None:
    """Return the owner that a lease's value names."""
    if found.kind != b"lease":
        return None
    return unquote(found.fields.partition(b" ")[2].decode("ascii", "replace"))


def _line(text: str) -> bytes:
    line = text.encode("ascii") + b"\n"
    assert len(line) <= MAX_HEADER_BYTES, f"an owner that is too long: {text[:80]}..."
    return line


_FIRST_LINE = """
local function first_line(key)
  local value = redis.pcall('GETRANGE', key, 0, 4095)
  if type(value) ~= 'string' then return '' end
  return string.match(value, '^(us1 [^\\n]*\\n)') or ''
end
local function is_anothers(key, line)
  local found = first_line(key)
  return string.sub(found, 1, 10) == 'us1 owned ' and found ~= line
end
"""

_SHORTEN = f"""
local function shorten(key, expiry_ms)
  local left, longest = redis.call('PTTL', key), math.max(expiry_ms * {LONGEST_EXPIRIES}, {LONGEST_LEFT_MS})
  if left == -1 or left > longest then redis.call('PEXPIRE', key, expiry_ms) end
end
"""

PUT_OWNED = f"""{_FIRST_LINE}{_SHORTEN}
-- key | first line, payload, expiry in ms, channel
if is_anothers(KEYS[1], ARGV[1]) then
  shorten(KEYS[1], tonumber(ARGV[3]))
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[2])
return 1
"""

DELETE_OWNED = f"""{_FIRST_LINE}
-- key | first line, payload, channel
if is_anothers(KEYS[1], ARGV[1]) then return 0 end
if first_line(KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
redis.call('PUBLISH', ARGV[3], ARGV[2])
return 1
"""

ACQUIRE = f"""{_FIRST_LINE}{_SHORTEN}
-- lease, term, fenced value | encoded owner, above, expiry in ms, highest term that can follow `above`, replaced owner
local held = string.match(first_line(KEYS[1]), '^us1 lease %d+ ([^\\n]*)\\n$')
if redis.call('EXISTS', KEYS[1]) == 1 and (ARGV[5] == '' or held ~= ARGV[5]) then
  local left, value = redis.call('PTTL', KEYS[1]), redis.pcall('GETRANGE', KEYS[1], 0, 15)
  local is_lease = type(value) == 'string' and string.match(value, '^us%d+ lease ')
  if not is_lease and left > tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  shorten(KEYS[1], tonumber(ARGV[3]))
  return 0
end
local term, was_absurd = tonumber(ARGV[2]), false
local stored = redis.pcall('GETRANGE', KEYS[2], 0, 31)
local fenced = string.match(first_line(KEYS[3]), '^us1 fenced (%d+) %d+\\n$')
for _, text in ipairs({{type(stored) == 'string' and string.match(stored, '^%d+$') or '0', fenced or '0'}}) do
  local number = tonumber(text)
  if number > tonumber(ARGV[4]) then was_absurd = true else term = math.max(term, number) end
end
term = term + 1
local text = string.format('%.0f', term)
redis.call('SET', KEYS[1], 'us1 lease ' .. text .. ' ' .. ARGV[1] .. '\\n', 'PX', ARGV[3])
redis.call('SET', KEYS[2], text)
return was_absurd and -term or term
"""

RENEW = """
-- lease | its value, expiry in ms
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

RELEASE = """
-- lease | its value
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

PUT_FENCED = f"""{_FIRST_LINE}
-- lease, key | the lease's value, term, epoch, payload, channel, highest term and epoch that can follow these; a
-- change, if there is one
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local term, epoch = string.match(first_line(KEYS[2]), '^us1 fenced (%d+) (%d+)\\n$')
if term then
  local stored, own = tonumber(term), tonumber(ARGV[2])
  if stored > tonumber(ARGV[6]) or tonumber(epoch) > tonumber(ARGV[7]) then
    stored = -1
  end
  if stored > own or (stored == own and tonumber(epoch) >= tonumber(ARGV[3])) then return 0 end
end
redis.call('SET', KEYS[2], 'us1 fenced ' .. ARGV[2] .. ' ' .. ARGV[3] .. '\\n' .. ARGV[4])
redis.call('PUBLISH', ARGV[5], ARGV[8] or ARGV[4])
return 1
"""

_SCRIPTS = {
    sha1(script.encode(), usedforsecurity=False).hexdigest(): script.splitlines()
    for script in (PUT_OWNED, DELETE_OWNED, ACQUIRE, RENEW, RELEASE, PUT_FENCED)
}
_PLACE = re.compile(r"\b(?:f_)?([0-9a-f]{40})\b.*?@user_script: ?([0-9]+)", re.DOTALL)
_CALL = re.compile(r"redis\.call\('([A-Z]+)'")


def commands_at(said: str) -> list[str]:
    """List the commands in the line that an error of Redis names by script and number; empty without such a line."""
    place = _PLACE.search(said)
    lines = [] if place is None else _SCRIPTS.get(place[1], [])
    number = 0 if place is None else int(place[2])
    return [name.lower() for name in _CALL.findall(lines[number - 1])] if 0 < number <= len(lines) else []
