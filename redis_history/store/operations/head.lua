-- Reads the newest change of a conversation, its totals and optionally its newest messages. After _head.lua, _member.lua and
-- _live.lua.
--
-- KEYS  state: hash; log: the change log, a list; messages: sorted set; further: keys that it asked for
-- ARGV  newest: how many of the newest messages to read, '0' for none
--       cluster: 'c' in a cluster, or ''
--
-- Returns {epoch, revision, head of the newest log entry, messages, characters, tokens, members, replies}; a
-- streaming reply is {sequence, content, milliseconds until its writer counts as dead}. Or {'keys', ...}: see _head.lua and
-- _live.lua.
local epoch, revision, newest, _, listed, ask = head_of(KEY.state, KEY.log)
if ask then return ask end
local totals = redis.call('HMGET', KEY.state, 'n', 'c', 'k')
local members = {}
if ARG.newest ~= '0' then members = redis.call('ZRANGE', KEY.messages, -tonumber(ARG.newest), -1) end
local replies = {}
if listed and ARG.newest ~= '0' then
  use_replies()
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local missing = {'keys'}
  for i, reply in ipairs(replies_in(listed)) do
    replies[i] = {reply[2], (read_content(KEY.state, reply[1], 0, missing, ARG.cluster == 'c')), reply[4] - now}
  end
  if #missing > 1 then return missing end
end
return {epoch, revision, newest, tonumber(totals[1] or 0), tonumber(totals[2] or 0), tonumber(totals[3] or 0), members, replies}
