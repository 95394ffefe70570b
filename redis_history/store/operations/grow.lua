-- Appends to the content of a streaming reply. It does not change the conversation, and only wakes the listeners.
-- It runs for every few words, so it has few arguments.
--
-- KEYS  content: <conversation>:t:<token of the reply>, a string; state: hash; log: the change log, a list
-- ARGV  offset: of these records
--       records: or ''
--       the others only if needed:
--       publishing: '' or the command that publishes (_publish.lua)
--       fence: of the run that the writer must have ('R<fence>:<run id>', see run.lua), or ''
--       field: with tool calls or results in the records: the state's field of the message
--       marks: of these, as in update.lua
--
-- Returns the size of the content in bytes; -1 if the reply has ended; -2 if the run is lost. Records whose offset is not the
-- end of the content are not appended: they were appended before, or the server has lost earlier ones.
local content, state, log, token = KEY.content, KEY.state, KEY.log, string.sub(KEY.content, -16)
if (ARG.fence or '') ~= '' then
  local time, run = redis.call('TIME'), redis.call('HGET', state, 'R')
  run = run and cmsgpack.unpack(run) or {}
  local held = run[4] == 'active' or run[4] == 'stopping'
  if not held or run[6] <= time[1] * 1000 + time[2] / 1000 or 'R' .. run[1] .. ':' .. run[2] ~= ARG.fence then return -2 end -- compares a float
end
local listed, found = redis.call('HGET', state, '~') or '', false
for at = 1, #listed, 33 do -- see _live.lua
  found = found or string.sub(listed, at, at + 15) == token
end
if not found then return -1 end
local size = redis.call('STRLEN', content)
if ARG.records == '' or size ~= tonumber(ARG.offset) then return size end
local grown = redis.call('APPEND', content, ARG.records)
if ARG.field then -- a cap must not tear a call in this reply from its result
  local place = redis.call('HGET', state, ARG.field)
  if place then redis.call('HSET', state, ARG.field, place .. ARG.marks) end
end
if size == 0 then -- the content must not outlive the conversation
  local left = redis.call('PTTL', state)
  if left > 0 then redis.call('PEXPIRE', content, left) end
end
redis.call('LTRIM', log, 0, -1) -- changes nothing, but causes a notification
if (ARG.publishing or '') ~= '' then
-- include _publish
  publish(ARG.publishing, log, 0)
end
return grown
