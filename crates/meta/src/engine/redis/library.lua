#!lua name=@LIBRARY@

-- A partition is three kinds of keys with one hash tag: a hash of values, a sorted set of its keys
-- (all of score 0, hence in lexical order), and one token for each lane of each client, which says
-- what became of the newest transaction that came along the lane.
--
-- A field of the hash that is not in the sorted set is the lease: as long as it is there, only
-- whoever names it may use the partition. It is 'id timeout sequence beat who': 16 digits; for how
-- many milliseconds it must stay the same before others may break it; the last transaction that the
-- holder has shipped; a count of the holder's signs of life; where it runs, for people.
--
-- A lease that was broken is kept in another field until somebody changes the partition: if the
-- holder comes back before that, it goes on as if nothing had happened.

local LEASE = '\0H'
local BROKEN = '\0B'
local ID = 16

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

-- The refusal of a caller that has the lease `mine` ('' for none): -2 and the lease in the way, or
-- -3 if there is no such lease as the caller believes to have.
local function refusal(hash, mine)
  local lease = redis.call('HGET', hash, LEASE)
  if lease and string.sub(lease, 1, ID) ~= mine then
    return {mine == '' and -2 or -3, lease}
  end
  if not lease and mine ~= '' then return {-3, ''} end
  return nil
end

-- ARGV from `at` on: writes, (key, 'P', value | key, 'D', '')*.
local function apply(hash, order, argv, at)
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
end

-- KEYS: values, order, token (for a transaction that writes).
-- ARGV: sequence, 1 if it may have been sent before, lease ('' for none), comparisons,
-- (key, kind, expected)*, reads, key*, writes as in `apply`.
local function execute(keys, argv)
  local hash, order, token = keys[1], keys[2], keys[3]
  if token then
    local reply = earlier(token, argv[1])
    if reply then return reply end
  end
  local refused = refusal(hash, argv[3])
  if refused then
    -- An attempt that is still on its way must not succeed after this answer.
    if token and argv[2] == '1' then remember(token, argv[1], cmsgpack.pack(refused)) end
    return refused
  end
  local at = 4
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
  if argv[3] == '' and argv[at] ~= '0' then redis.call('HDEL', hash, BROKEN) end
  apply(hash, order, argv, at)
  if token then remember(token, argv[1], cmsgpack.pack(reply)) end
  return reply
end

-- KEYS: values, order. ARGV: lower bound, upper bound, limit (-1: none), guard ('' for none), lease.
-- Replies -1 if the guard is there, else whether more may follow, then keys and values in turn.
local function scan(keys, argv)
  local refused = refusal(keys[1], argv[5])
  if refused then return refused end
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

-- Takes the lease of a partition that nobody has. KEYS: values, order. ARGV: id, timeout, who, the
-- most records that the partition may have. Replies 1, 0 if there are more, or -2 and who has it.
local function take(keys, argv)
  local lease = redis.call('HGET', keys[1], LEASE)
  if lease then
    return string.sub(lease, 1, ID) == argv[1] and {1} or {-2, lease}
  end
  if redis.call('ZCARD', keys[2]) > tonumber(argv[4]) then return {0} end
  redis.call('HDEL', keys[1], BROKEN)
  redis.call('HSET', keys[1], LEASE, argv[1] .. ' ' .. argv[2] .. ' 0 0 ' .. argv[3])
  return {1}
end

-- The lease that `id` has, or had when it was broken, if nothing was changed since.
local function lease_of(hash, id)
  local lease = redis.call('HGET', hash, LEASE) or redis.call('HGET', hash, BROKEN)
  return lease and string.sub(lease, 1, ID) == id and lease or nil
end

-- Brings what the holder has committed, and shows that it lives. KEYS: values, order. ARGV: id, the
-- transaction before the first, the last one, writes as in `apply`. Done once, however often it
-- comes. Replies 1, or -3 if the lease or what was shipped before is not there any more.
local function ship(keys, argv)
  local lease = lease_of(keys[1], argv[1])
  if not lease then return {-3, ''} end
  local id, timeout, last, beat, who = string.match(lease, '^(%x+) (%d+) (%d+) (%d+) (.*)$')
  if tonumber(last) < tonumber(argv[3]) then
    if tonumber(last) ~= tonumber(argv[2]) then return {-3, lease} end
    apply(keys[1], keys[2], argv, 4)
    last = argv[3]
  end
  beat = string.format('%.0f', tonumber(beat) + 1)
  local now = id .. ' ' .. timeout .. ' ' .. last .. ' ' .. beat .. ' ' .. who
  redis.call('HSET', keys[1], LEASE, now)
  redis.call('HDEL', keys[1], BROKEN)
  return {1}
end

-- Gives a lease back. KEYS: values. ARGV: id.
local function release(keys, argv)
  if lease_of(keys[1], argv[1]) then redis.call('HDEL', keys[1], LEASE, BROKEN) end
  return {1}
end

-- Ends a lease whose holder shows no sign of life. KEYS: values. ARGV: the lease as it was.
local function seize(keys, argv)
  if redis.call('HGET', keys[1], LEASE) == argv[1] then
    redis.call('HSET', keys[1], BROKEN, argv[1])
    redis.call('HDEL', keys[1], LEASE)
  end
  return {1}
end

-- A lease, if it counts. KEYS: values. ARGV: id.
local function lease(keys, argv)
  return {1, lease_of(keys[1], argv[1]) or ''}
end

-- Asks the holder to give a lease back: it hears of every change of this key, which is none.
-- KEYS: the key.
local function want(keys)
  redis.call('SET', keys[1], '')
  redis.call('DEL', keys[1])
  return {1}
end

redis.register_function{function_name = '@LIBRARY@_execute', callback = execute}
redis.register_function{function_name = '@LIBRARY@_read', callback = execute, flags = {'no-writes'}}
redis.register_function{function_name = '@LIBRARY@_scan', callback = scan, flags = {'no-writes'}}
redis.register_function{function_name = '@LIBRARY@_take', callback = take}
redis.register_function{function_name = '@LIBRARY@_ship', callback = ship}
redis.register_function{function_name = '@LIBRARY@_release', callback = release}
redis.register_function{function_name = '@LIBRARY@_seize', callback = seize}
redis.register_function{function_name = '@LIBRARY@_lease', callback = lease, flags = {'no-writes'}}
redis.register_function{function_name = '@LIBRARY@_want', callback = want}
