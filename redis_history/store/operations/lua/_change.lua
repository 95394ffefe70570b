-- Shared by all writing scripts.
--
-- KEYS  state: hash; messages: sorted set; log: the change log, a list; registry: sorted set
-- ARGV  token: of this change
--       expected_revision: or ''
--       condition: 'exists', 'absent', 'run:…', one of the first two with ';run:…', or ''
--       log_length: of the change log
--       name: in the registry
--       ttl: the time to live in milliseconds, or ''
--       sent: when the call was first sent, in microseconds of this server's clock, rather early than late; '0': not known; with
--         a minus: an earlier copy may have been executed
--       publishing: '', or the command that publishes the change (_publish.lua)
--       flags: '1' if the caller waits until its writes are durable, and 'c' in a cluster; ';' and the milliseconds for which the
--         audit trail keeps changes, if there is one; a line break and who makes the change, if the caller says it
-- Then the keys and arguments of the script.
--
-- Extra keys. While a slot moves between two nodes of a cluster, a key that a script has not declared in KEYS proves nothing
-- by its absence, and a command on it may fail in the middle of the script. Dragonfly and Upstash take no undeclared keys at
-- all. So a script first reads the state, and if it needs a key that is not declared, it writes nothing and returns
-- {'keys', name, ...}. The caller then repeats the call with these keys added. A cluster answers TRYAGAIN until all of them are
-- on one node. Search documents are not declared: no server that searches asks for it, and a script gives them their names.
--
-- State fields: v layout, e epoch (only if the conversation exists), r revision, x head of the newest log entry, o if another
-- conversation of this id ended a short while ago: 'log' if its log still existed when this one began, otherwise 10 bytes which
-- differ for each, q sequence, t newest server timestamp,
-- n messages, c characters, k tokens, b created, u updated (microseconds), l time to live (milliseconds),
-- F times of the first and the last message since the last restore or clear (7 bytes each);
-- O '' if none of i, l, a, m, w, g, U, A, B and ? exists, or 'i' and the value of i if it alone does, so that appends need not read
-- them;
-- i, d, y search documents (_document.lua); R, W, Q, Z, f leases (run.lua); X the token of a staging copy (copy.lua); N the forks
-- under way (forks.lua); a, h, m, s, w, w<revision>, E, '^<id>' compactions (_archive.lua); g, j, J, ';' the journal (see below); p newest period with appends (uint32),
-- the sequence at its start and at the start of the one before (6 bytes each);
-- ~ streaming replies (_live.lua); &, &<digits> large contents (_contents.lua); ? open requests for approval (_requests.lua);
-- % what answers cost (_usage.lua);
-- the record: U user id, A agent name, T title, D auditing id, M metadata (each a MessagePack value); of a fork B the id of the forked
-- conversation, C {its revision, id of the last message or nil};
-- ':<digest of an id>' position and details of a message (_member.lua).
--
-- The change log has one entry for each revision; the last entry has the state's revision. An entry has a head of 10 bytes
-- and references without content. The head: kind (the upper 4 bits) and time of the change (52 bits), then the mark of the
-- call. The head is the token in the cursors of subscribers. The rest, by kind:
-- 1 append of one message at the time of the change: its sequence (as few bytes as it needs);
-- the others as MessagePack:
-- 2 append, 3 restore: {first sequence, {timestamps}, ids that the cap removed, their sequences (0: of a summary, or unknown)}
-- 4 update: {id, timestamp, sequence}   5 clear: nothing   6 record: the names of its fields, one byte each
-- 7 delete: {ids, sequences}   8 compact: {id of the summary, timestamp, sequence, messages replaced}
-- 9 expand: {id of the summary, messages}   10 end of the conversation: {revision}   11 end of a reply: as an update
-- 12 beginning of a fork or of an imported conversation: nothing
-- Who made the change, if the caller said it, is one more element of an array, or follows other bytes and a byte 0.
--
-- At most once. Copies of a call may reach the server several times, and late: after a lost reply, or after a newer
-- write was acknowledged. So each call has its token and the time when it was first sent. The journal of the conversation
-- keeps, for one to two LIFETIMEs, the outcome of every call that removed or replaced something or was refused, and the
-- former positions of removed messages. Such a call reads the journal first. An append is recognized by the ids it
-- stored; it reads the journal only if that was written since the append was first sent. A copy that is older than the
-- journal is refused ('late'), because the server cannot tell any more whether the call was executed.
--
-- The journal is in the state, so that no script needs a key that may not be there:
--   'J<token>'          the outcome of a call (cmsgpack)
--   ';<digest><mark>'   the place of a removed or replaced message, for each call that appended it
--   'j<number>'         a queue of the writes, from which old entries are removed: the time (7 bytes), the token, and
--                       the digest and mark of each place (15 bytes)
--   g  the time of the last write, the time until which calls cannot be decided because their entries are gone, the first
--      number in the queue and the one after the last, and the time of the first entry
-- When one call removes all messages, the state is written anew with the journal. The journal of a deleted conversation
-- is kept for two LIFETIMEs.
--
-- A full server refuses the first write of a script, so nothing is written. Scripts that remove data call free()
-- first: after a write that takes no memory, a full server accepts all later ones.
local state, messages, log, registry, token = KEY.state, KEY.messages, KEY.log, KEY.registry, ARG.token
local pack, format, byte, char, sub = struct.pack, string.format, string.byte, string.char, string.sub
local LIFETIME = 60000000
-- Arithmetic converts a string to a number at half the cost of tonumber.
local repeated = byte(ARG.sent) == 45 -- a minus
local sent = repeated and -ARG.sent or ARG.sent + 0
local mark = tonumber(sub(token, 1, 6), 16)
local lists_of -- of _lists.lua
local change = {flags = ARG.flags} -- by: who makes it; audit: see write_log
if #ARG.flags > 2 then
  change.flags, change.audit, change.by = string.match(ARG.flags, '^(%w*);?(%d*)\n?(.*)$')
  if change.audit == '' then change.audit = nil end
  if change.by == '' then change.by = nil end
end

-- The server's clock in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The head of the log entry of this change, also a field of the state.
local function head_of_entry(kind, now)
  return pack('>BI6I3', kind * 16 + math.floor(now / 281474976710656), now % 281474976710656, mark)
end

-- Adds a change to the audit trail of the bucket, the list <tag>:e, which outlives the conversation. For each: the name and the
-- auditing id of the conversation, with their lengths (2 bytes each), and the entry of the log.
function change.note(entry)
  local trail = sub(registry, 1, -2) .. 'e'
  local id = redis.call('HGET', state, 'D') or ''
  redis.call('RPUSH', trail, pack('>I2', #ARG.name) .. ARG.name .. pack('>I2', #id) .. id .. entry)
  local oldest = format('%.0f', clock() - change.audit * 1000)
  for _, one in ipairs(redis.call('LRANGE', trail, 0, 7)) do -- a few with each change, so that none takes long
    local at = 3 + struct.unpack('>I2', one)
    at = at + 2 + struct.unpack('>I2', one, at)
    local high, low = struct.unpack('>BI6', one, at)
    if high % 16 * 281474976710656 + low - oldest >= 0 then break end
    redis.call('LTRIM', trail, 1, -1)
  end
end

-- Writes the log entry. `rest`: bytes, or a table for MessagePack.
local function write_log(head, rest)
  if type(rest) == 'table' then
    rest[#rest + 1] = change.by
    rest = cmsgpack.pack(rest)
  elseif change.by then
    rest = rest .. '\0' .. change.by
  end
  local excess = redis.call('RPUSH', log, head .. rest) - ARG.log_length
  if change.audit then change.note(head .. rest) end
  -- Trim several entries together, because each trim wakes the listeners.
  if excess > 16 and excess > math.min(tonumber(ARG.log_length), 256) then redis.call('LTRIM', log, -ARG.log_length, -1) end
end

-- The last writes of a change: scores in the registry and in the lists of the owners, and the message to the channel. (Redis converts whole numbers below 2^53 exactly; only `..` rounds them.)
local function announce(revision, now, owners)
  -- Above all other scores of the bucket, also after the clock was set back or a failover: a reader that asks for changes
  -- since the highest score it knows misses nothing.
  if redis.call('ZCOUNT', registry, now, '+inf') > 0 then
    now = redis.call('ZREVRANGE', registry, 0, 0, 'WITHSCORES')[2] + 1
  end
  redis.call('ZADD', registry, now, ARG.name)
  if owners and (owners[1] or owners[2] or owners[3]) then
    for _, list in ipairs(lists_of(owners)) do
      if redis.call('ZADD', list, now, ARG.name) == 1 and ARG.ttl == '' then redis.call('PERSIST', list) end
    end
  end
  if ARG.publishing ~= '' then
-- include _publish
    publish(ARG.publishing, log, revision)
  end
end

-- A number with 7 bits in each byte, low ones first.
local function pack_number(number)
  if number < 128 then return char(number) end
  local low = number % 128
  if number < 16384 then return char(low + 128, (number - low) / 128) end -- char takes a float
  return char(low + 128) .. pack_number((number - low) / 128) -- a float, too
end

-- A member. `what`: characters, flags, the header byte of the body, tool marks; `rest`: of the body. (Few function calls,
-- because a batch makes a thousand members; 'c5' packs the first five bytes of `what`.)
local function member_of(sequence, timestamp, what, rest)
  local microseconds = timestamp % 1000000
  local seconds = (timestamp - microseconds) / 1000000 -- a float in Lua 5.4, as pack takes it
  if seconds < 0 then
    return pack('>I4c5BI4BBBI4i8', sequence, what, 0xce, sequence, 0xc7, 12, 0xff, microseconds * 1000, seconds) .. rest
  end
  local low = seconds % 4294967296 -- seconds are below 2^34 for all times that a score can hold; until 2106 below 2^32
  local high = microseconds * 4000 + (seconds - low) / 4294967296 -- a float, too
  return pack('>I4c5BI4BBI4I4', sequence, what, 0xce, sequence, 0xd7, 0xff, high, low) .. rest
end
