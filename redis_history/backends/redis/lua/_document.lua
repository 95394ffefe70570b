-- The search documents of a conversation: one hash for each message, where the index of the namespace finds it.
-- Put after _change.lua.
--
-- A document is rhd:{<namespace>:<bucket>}:<conversation>:<life>:<sequence>. The life, a token, is in the state as 'i' and
-- in each document as 'c'. When all messages leave at once a new life begins with the next document: those of the former
-- are found no more at that moment, and are removed at once if they are few, else little by little (reap.lua).
-- With a time to live they have one of their own, half as long again, so that not every change must renew all of them:
-- 'd' is until when (milliseconds) all are there, 'y' the rank up to which a renewal has come and what it renews to.
local AT_ONCE, RENEWED = 500, 256

local function documents_of(life)
  return 'rhd' .. string.sub(state, 3, -2) .. life .. ':'
end

local function document_ends(now, ttl)
  return format('%.0f', math.floor(now / 1000) + math.floor(ttl * 1.5))
end

-- Writes the document of one message: `from` and `to` are where its fields and values are in ARGV. All it had before go.
-- `anew`: there is none of this sequence.
local function document(prefix, life, sequence, timestamp, from, to, ends, anew)
  local key = prefix .. sequence
  if not anew then redis.call('UNLINK', key) end
  redis.call('HSET', key, 'c', life, 'm', timestamp, unpack(ARGV, from, to))
  if ends then redis.call('PEXPIREAT', key, ends) end
end

local function forget_documents(life, sequences)
  if not life then return end
  local prefix = documents_of(life)
  for first = 1, #sequences, 1000 do
    local keys = {}
    for i = first, math.min(first + 999, #sequences) do
      keys[#keys + 1] = prefix .. sequences[i]
    end
    redis.call('UNLINK', unpack(keys))
  end
end

-- Before all messages leave: removes their documents, or leaves that to reap.lua; then returns the life to name to it.
local function bury(life, count, ttl)
  if not life or count == 0 then return nil end
  if count <= AT_ONCE then
    local sequences = {}
    for i, member in ipairs(redis.call('ZRANGE', messages, 0, -1)) do
      sequences[i] = #member < 19 and 0 or struct.unpack('>I8', string.sub(member, 3, 10))
    end
    forget_documents(life, sequences)
    return nil
  end
  local graves = string.sub(registry, 1, -2) .. 'g'
  local grave = graves .. ':' .. life
  redis.call('RENAME', messages, grave)
  local left = redis.call('PTTL', graves)
  redis.call('HSET', graves, life, documents_of(life))
  if ttl and ttl ~= '' then
    local lasts = math.floor(ttl * 1.5)
    redis.call('PEXPIRE', grave, lasts)
    if left == -2 or left >= 0 and left < lasts then redis.call('PEXPIRE', graves, lasts) end
  else
    redis.call('PERSIST', grave)
    redis.call('PERSIST', graves)
  end
  return life
end

-- Lets documents live on with their conversation. A long one is renewed by its changes in turns; what that misses,
-- the next search in the conversation writes anew.
function renew_documents(life, now, ttl, changed)
  local known = redis.call('HMGET', state, 'd', 'y')
  local needed = math.floor(now / 1000) + ttl
  if known[1] and not changed and tonumber(known[1]) >= needed then return end
  local rank, ends = 0, nil
  if known[2] and not changed then rank, ends = string.match(known[2], '^(%d+) (%d+)$') end
  if not ends or tonumber(ends) < needed then rank, ends = 0, document_ends(now, ttl) end
  rank = tonumber(rank)
  local members = redis.call('ZRANGE', messages, rank, rank + RENEWED - 1)
  local prefix = documents_of(life)
  for _, member in ipairs(members) do
    if #member >= 19 then
      redis.call('PEXPIREAT', prefix .. struct.unpack('>I8', string.sub(member, 3, 10)), ends)
    end
  end
  if #members < RENEWED then
    redis.call('HSET', state, 'd', ends)
    redis.call('HDEL', state, 'y')
  else
    redis.call('HSET', state, 'y', (rank + RENEWED) .. ' ' .. ends)
  end
end
