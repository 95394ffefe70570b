-- Marks search documents as archived or live, in steps, for the pending moves of the state ('j', see _archive.lua). It uses
-- the present position of each message, so a step may run twice, or late. After _archive.lua and _locate.lua.
--
-- KEYS  state: hash; messages: sorted set; unfinished: the unfinished work of the bucket, a hash; then those that it asked for
-- ARGV  name: in `unfinished`
--       revision: of the move where the last step stopped, or ''
--       timestamp, sequence: where it stopped
--
-- Returns where it stopped, for the next step: {revision, timestamp, sequence}; {} if no move is pending; or {'keys', ...}, which
-- asks for an archive or documents, because the absence of a key that is not declared proves nothing while a slot moves.
use_archives()
use_places()
local AT_ONCE = 50 -- 5 to 8 ms, because changed documents are indexed again
local known = redis.call('HMGET', KEY.state, 'i', 'j', 's')
local revision, first, last, rest = string.match(known[2] or '', '^(%d+) (%-?%d+) (%-?%d+);(.*)$')
if not known[1] or not revision then
  if known[2] then redis.call('HDEL', KEY.state, 'j') end
  redis.call('HDEL', KEY.unfinished, ARG.name)
  return {}
end
last = tonumber(last)
-- Messages of an expansion are live, also those of a compaction that was expanded since.
local archived = archive_index.with(KEY.state, tonumber(revision))
local set, standing = KEY.messages, nil
if archived then
  set = archive_of(KEY.state, archived)
  local ask = undeclared_archives(KEY.state, {archived})
  if ask then return ask end
elseif known[3] then -- the live summary shares the sequence of a message in its archive
  standing = sequence_at(KEY.state, known[3])
end
local timestamp, sequence = first, 0
if ARG.revision == revision then timestamp, sequence = ARG.timestamp, tonumber(ARG.sequence) end
local rank = rank_of(set, timestamp, sequence)
local members = redis.call('ZRANGE', set, rank, rank + AT_ONCE - 1, 'WITHSCORES')
local prefix = 'rhd2' .. string.sub(KEY.state, 4, -2) .. known[1] .. ':'
local more, readable = #members == 2 * AT_ONCE, false
local keys = {}
for i = 1, #members, 2 do
  if tonumber(members[i + 1]) > last then
    more = false
    break
  end
  local own = sequence_of(members[i])
  if own ~= 0 then timestamp, sequence, readable = members[i + 1], own + 1, true end
  if own ~= 0 and own ~= standing then keys[#keys + 1] = prefix .. own end
end
local ask = undeclared_keys(keys)
if ask then return ask end
for _, key in ipairs(keys) do
  local held = redis.call('HMGET', key, 'c', 'z')
  if archived and held[1] and not held[2] then
    redis.call('HSET', key, 'z', '1')
  elseif not archived and held[2] then
    redis.call('HDEL', key, 'z')
  end
end
if more then
  if not readable then timestamp, sequence = members[#members] + 1, 0 end -- skip members without a readable position
  return {revision, string.format('%.0f', tonumber(timestamp)), sequence}
end
if rest ~= '' then
  redis.call('HSET', KEY.state, 'j', rest)
  return {'', '', 0}
end
redis.call('HDEL', KEY.state, 'j')
redis.call('HDEL', KEY.unfinished, ARG.name)
return {}
