-- The start and the end of every writing script.
--
-- KEYS  1 state (hash)  2 messages (sorted set)  3 change log (stream)  4 registry (sorted set)
-- ARGV  1 token of this change   2 expected revision or ''   3 'exists', 'absent', 'lease:…' or ''   4 length of the change log
--       5 name in the registry   6 time to live in milliseconds or ''
--       7 when the call was first sent: microseconds of this server's clock, never later than the truth; '0': not known;
--         with a minus: an earlier copy may have been executed
--       8 channel to publish to or ''   9 '1' if the caller waits until its writes are durable
--
-- State fields: v layout, e epoch, r revision, x token of the newest change, q sequence, t newest server timestamp,
-- n messages, c characters, k tokens, b created, u updated (microseconds), l time to live (milliseconds),
-- i, d, y search documents (_document.lua); f leases so far (lease.lua); a, h, m, s, w, '^<id>', '#<revision>' compactions (_archive.lua);
-- g when the journal was last written (microseconds); p newest period with appends (uint32), the sequence at its start and at
-- the start of the one before (6 bytes each);
-- the record: U user id, A agent name, T title, D auditing id, M metadata (each a MessagePack value);
-- ':<id>' = head of the member (19 bytes: array of 3, uint64 sequence, int64 timestamp), revision (5 bytes), mark of the
-- call that appended it (3 bytes), then
-- uint32 characters, uint32 tokens, digest (16 bytes), and for each tool call ('u') or result ('r') in it 5 bytes, or 9
-- ('U', 'R') if an agent wrote the message.
--
-- At most once. Copies of a call may reach the server several times, and late: after a lost reply, or after a newer
-- write was acknowledged. So each call carries its token and the time it was first sent, and the journal of the
-- conversation keeps, for one to two LIFETIMEs, the outcome of every call that removed or replaced something or was
-- refused, and where messages were that have left. Such a call looks into the journal first. An append is recognised
-- by the ids it stored; it looks into the journal only if one was written since it was first sent. A copy that is older
-- than the journal is refused ('late'): the server cannot tell any more whether the call was executed.
--
-- The journal is two hashes, <state>j0 and <state>j1, for even and odd periods of LIFETIME; a period's hash replaces the one before the
-- last. Fields: b period   h calls sent until then cannot be decided   't<token>' outcome (cmsgpack)
-- ':<id><mark>' the first 24 bytes of the state's field of a message that left or was replaced, of each call that appended it
-- o tokens of changes that took all messages away: the states before them are kept as <state>o:<token>.
--
-- The first write of a script decides: a full server refuses it, and a change log that does not fit (its newest
-- entry is above the state's revision) makes XADD fail. So XADD comes first; scripts that remove data call free()
-- before, because a full server lets pass what follows a write that takes no memory.
local state, messages, log, registry, token = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local pack, format = struct.pack, string.format
local RECORD = {'U', 'A', 'T', 'D', 'M'}
local LIFETIME, KEPT_STATES = 60000000, 16
local sent, repeated = math.abs(tonumber(ARGV[7])), string.sub(ARGV[7], 1, 1) == '-'
local mark = tonumber(string.sub(token, 1, 6), 16)

-- Why the precondition does not hold, as a reply; nil if it does.
local function refused(epoch, revision)
  if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then return {'revision', revision} end
  if ARGV[3] == 'exists' and not epoch then return {'missing'} end
  if ARGV[3] == 'absent' and epoch then return {'exists', revision} end
  if string.sub(ARGV[3], 1, 6) == 'lease:' and redis.call('HGET', string.sub(state, 1, -2) .. 'w', 'w') ~= string.sub(ARGV[3], 7) then
    return {'lease'}
  end
end

-- The server's clock in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local renew_documents, renew_archives -- of _document.lua

-- Lets everything of the conversation end together, `ttl` milliseconds from now; other writers keep to it. `generation`: of its
-- search documents, `archived`: until when its archives live, if there are any.
local function live(ttl, now, before, generation, archived)
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
  if generation then renew_documents(generation, now, ttl, ttl ~= before) end
end

-- The log entry: the first write of a change, after free() where it removes. `more` are further fields of the entry.
local function write_log(revision, kind, payload, more)
  redis.call('XADD', log, 'MAXLEN', '~', ARGV[4], revision .. '-0', 't', token, 'k', kind, 'p', payload, unpack(more or {}))
end

-- The place in the registry, and the signal to those who wait on the channel; the last writes of a change. (Lua writes
-- whole numbers below 2^53 exactly into a command; only `..` rounds them.)
local function announce(revision, now)
  -- Above all others of the bucket, also when the clock was set back or is another server's: a reader that asks for changes
  -- since the highest score it knows misses nothing.
  local highest = redis.call('ZREVRANGE', registry, 0, 0, 'WITHSCORES')[2]
  if highest and tonumber(highest) >= now then now = tonumber(highest) + 1 end
  redis.call('ZADD', registry, now, ARGV[5])
  if ARGV[8] ~= '' then redis.call('PUBLISH', ARGV[8], revision) end
end

-- Makes room for a new life: what a former one left behind must not come back. If its log was still there, the returned
-- field tells the log's readers that the conversation is another one.
local function begin()
  redis.call('UNLINK', messages)
  if redis.call('UNLINK', log) == 1 then return {'o', '1'} end
  return {}
end
