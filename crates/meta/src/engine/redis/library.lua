#!lua name=@LIBRARY@

-- A partition is three kinds of keys with one hash tag: a hash of values, a sorted set of its keys
-- (all of score 0, hence in lexical order), and one token for each lane of each client, which says
-- what became of the newest transaction that came along the lane.

local CHUNK = 512

local function values_of(hash, fields, first, last, into)
  for from = first, last, CHUNK do
    local to = math.min(from + CHUNK - 1, last)
    for _, value in ipairs(redis.call('HMGET', hash, unpack(fields, from, to))) do
      into[#into + 1] = value
    end
  end
  return into
end

local function holds(kind, expected, found)
  if kind == 'A' then return not found end
  if not found then return false end
  if kind == 'P' then return true end
  if kind == 'V' then return found == expected end
  return string.sub(found, 1, #expected) == expected
end

-- How long a token is kept after its transaction, in milliseconds: longer than any request may
-- linger in a buffer.
local TOKEN_MS = 600000

local function remember(token, sequence, outcome)
  redis.call('SET', token, sequence .. ' ' .. outcome, 'PX', TOKEN_MS)
end

-- The reply of an earlier attempt, if this is not the first one.
local function earlier(token, sequence)
  local seen = redis.call('GET', token)
  if not seen then return nil end
  local number, outcome = string.match(seen, '^(%d+) (.*)$')
  if tonumber(number) < tonumber(sequence) then return nil end
  if tonumber(number) > tonumber(sequence) then
    return redis.error_reply('FBSTALE this transaction was given up')
  end
  return cmsgpack.unpack(outcome)
end

-- KEYS: values, order, token (for a transaction that writes).
-- ARGV: sequence, 1 if it may have been sent before, comparisons, (key, kind, expected)*,
-- reads, key*, writes, (key, 'P', value | key, 'D', '')*.
local function execute(keys, argv)
  local hash, order, token = keys[1], keys[2], keys[3]
  if token then
    local reply = earlier(token, argv[1])
    if reply then return reply end
  end
  local at = 3
  local comparisons = tonumber(argv[at])
  for i = 1, comparisons do
    local base = at + 3 * i - 2
    if not holds(argv[base + 1], argv[base + 2], redis.call('HGET', hash, argv[base])) then
      -- An attempt that is still on its way must not succeed after this answer.
      if token and argv[2] == '1' then remember(token, argv[1], cmsgpack.pack({0})) end
      return {0}
    end
  end
  at = at + 3 * comparisons + 1
  local reads = tonumber(argv[at])
  local reply = values_of(hash, argv, at + 1, at + reads, {1})
  at = at + reads + 1
  for i = 1, tonumber(argv[at]) do
    local base = at + 3 * i - 2
    local key = argv[base]
    if argv[base + 1] == 'P' then
      if redis.call('HSET', hash, key, argv[base + 2]) == 1 then
        redis.call('ZADD', order, 0, key)
      end
    elseif redis.call('HDEL', hash, key) == 1 then
      redis.call('ZREM', order, key)
    end
  end
  if token then remember(token, argv[1], cmsgpack.pack(reply)) end
  return reply
end

-- KEYS: values, order. ARGV: lower bound, upper bound, limit (-1: none), guard ('' for none).
-- Replies -1 if the guard is there, else whether more may follow, then keys and values in turn.
local function scan(keys, argv)
  if argv[4] ~= '' and redis.call('HEXISTS', keys[1], argv[4]) == 1 then return {-1} end
  local limit = tonumber(argv[3])
  local ask = limit < 0 and -1 or limit + 1
  local found = redis.call('ZRANGEBYLEX', keys[2], argv[1], argv[2], 'LIMIT', 0, ask)
  local count = #found
  local more = 0
  if limit >= 0 and count > limit then
    count, more = limit, 1
  end
  local values = values_of(keys[1], found, 1, count, {})
  local reply = {more}
  for i = 1, count do
    reply[2 * i] = found[i]
    reply[2 * i + 1] = values[i]
  end
  return reply
end

redis.register_function{function_name = '@LIBRARY@_execute', callback = execute}
redis.register_function{function_name = '@LIBRARY@_read', callback = execute, flags = {'no-writes'}}
redis.register_function{function_name = '@LIBRARY@_scan', callback = scan, flags = {'no-writes'}}
