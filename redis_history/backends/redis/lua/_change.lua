-- What every writing script begins and ends with. Put before them.
--
-- KEYS  1 state (hash)  2 messages (sorted set)  3 change log (stream)  4 registry (sorted set)
-- ARGV  1 token of this change   2 expected revision or ''   3 'exists', 'absent' or ''   4 length of the change log
--       5 name in the registry   6 time to live in milliseconds or ''   7 '1' if this call may have run before
--       8 channel to publish to or ''   9 '1' if the caller waits until its writes are kept
--
-- State fields: v layout, e epoch, r revision, x token of the newest change, q sequence, t newest server timestamp,
-- n messages, c characters, k tokens, b created, u updated (microseconds), l time to live (milliseconds),
-- i, d, y search documents (_document.lua); a, h, m, s, w, '^<id>', '#<revision>' compactions (_archive.lua);
-- the record: U user id, A agent name, T title, D auditing id, M metadata (each a MessagePack value);
-- ':<id>' = head of the member (19 bytes: array of 3, uint64 sequence, int64 timestamp), uint64 revision, then
-- uint32 characters, uint32 tokens, digest (16 bytes), 5 bytes for each tool call ('u') or result ('r') in it.
--
-- A server without memory refuses a script at its first command that takes some, unless it has written before. So what
-- brings content begins its writing with such a command, and what takes away begins with one that frees.
local state, messages, log, registry, token = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local pack, format = struct.pack, string.format
local RECORD = {'U', 'A', 'T', 'D', 'M'}

-- Why the precondition does not hold, as a reply; nil if it does.
local function refused(epoch, revision)
  if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then return {'revision', revision} end
  if ARGV[3] == 'exists' and not epoch then return {'missing'} end
  if ARGV[3] == 'absent' and epoch then return {'exists', revision} end
end

-- What the log tells of this very change: its revision and payload, if an earlier try was applied and its reply lost.
local function told()
  if ARGV[7] ~= '1' then return nil end
  local from = '+'
  while true do
    local entries = redis.call('XREVRANGE', log, from, '-', 'COUNT', 64)
    if #entries == 0 then return nil end
    for _, entry in ipairs(entries) do
      if entry[2][2] == token then return tonumber(string.match(entry[1], '^%d+')), entry[2][6] end
    end
    from = '(' .. entries[#entries][1]
  end
end

-- Before an outcome for which nothing has to be written. WAITAOF and WAIT are about the last write of a connection, and
-- what this outcome tells of may have been written on another, so a write without effect takes its place behind it.
local function touch()
  if ARGV[9] ~= '1' then return end
  local newest = redis.call('HGET', state, 'x')
  redis.call('HSET', state, 'x', newest or '')
  if not newest then redis.call('UNLINK', state) end
end

-- The server's clock in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A MessagePack array of texts.
local function array_of(texts)
  local items = {}
  for i, text in ipairs(texts) do
    items[i] = pack('>BI4', 0xdb, #text) .. text
  end
  return pack('>BI4', 0xdd, #items) .. table.concat(items)
end

local renew_documents, renew_archives -- of _document.lua

-- Lets everything of the conversation end together, `ttl` milliseconds from now; other writers keep to it. `life`: of its
-- search documents, `archived`: until when its archives live, if there are any.
local function live(ttl, now, before, life, archived)
  if ttl ~= '' then redis.call('HSET', state, 'l', ttl) else ttl = before end
  if not ttl or ttl == '' then return end
  local ends = format('%.0f', math.floor(now / 1000) + ttl)
  redis.call('PEXPIREAT', state, ends)
  redis.call('PEXPIREAT', messages, ends)
  redis.call('PEXPIREAT', log, ends)
  -- The registry lives as long as the longest of its conversations, and for ever if one of them does.
  local left = redis.call('PTTL', registry)
  if left >= 0 and left < tonumber(ttl) or left == -1 and redis.call('ZCARD', registry) == 1 then
    redis.call('PEXPIREAT', registry, ends)
  end
  if archived and tonumber(archived) < math.floor(now / 1000) + ttl then renew_archives(now, ttl) end
  if life then renew_documents(life, now, ttl, ttl ~= before) end
end

-- Tells those who wait on the channel that there is a change; they trust nothing but the log.
local function ring(revision)
  if ARGV[8] ~= '' then redis.call('PUBLISH', ARGV[8], revision) end
end

-- The place in the registry and the log entry; the last writes of a change. `more` are further fields of the entry.
local function announce(revision, now, kind, payload, more)
  -- Above all others of the bucket, also when the clock was set back or is another server's: who looks for what changed
  -- since the highest score that it knows misses nothing.
  local highest = redis.call('ZREVRANGE', registry, 0, 0, 'WITHSCORES')[2]
  if highest and tonumber(highest) >= now then now = tonumber(highest) + 1 end
  redis.call('ZADD', registry, format('%.0f', now), ARGV[5])
  redis.call('XADD', log, 'MAXLEN', '~', ARGV[4], revision .. '-0', 't', token, 'k', kind, 'p', payload, unpack(more or {}))
  ring(revision)
end

-- Makes room for a new life. What a former one left behind must not come back; of a log still there, its readers are
-- told by the field this returns that the conversation is another one.
local function begin()
  redis.call('UNLINK', messages)
  if redis.call('UNLINK', log) == 1 then return {'o', '1'} end
  return {}
end
