-- Appends to the content of a reply that is being written. No change of the conversation: only the listeners are woken.
-- It runs for every few words, so it takes as few arguments as possible.
--
-- KEYS  1 content (string): <conversation>:t:<token of the reply>
-- ARGV  1 where these records begin   2 the records, or ''   3 '1' to publish as well
--
-- Returns how many bytes the content has now; -1: this reply is not being written any more. Records that do not begin where
-- the content ends are not appended: they are there already, or the server has lost what was before them.
local content = KEYS[1]
local conversation, token = string.sub(content, 1, -19), string.sub(content, -16)
local state, log = conversation .. 's', conversation .. 'l'
local listed, found = redis.call('HGET', state, '~') or '', false
for at = 1, #listed, 33 do -- see _live.lua
  found = found or string.sub(listed, at, at + 15) == token
end
if not found then return -1 end
local size = redis.call('STRLEN', content)
if ARGV[2] == '' or size ~= tonumber(ARGV[1]) then return size end
local grown = redis.call('APPEND', content, ARGV[2])
if size == 0 then -- it must not outlive the conversation
  local left = redis.call('PTTL', state)
  if left > 0 then redis.call('PEXPIRE', content, left) end
end
redis.call('LTRIM', log, 0, -1) -- changes nothing, but is announced as every command on the log
if ARGV[3] == '1' then redis.call('PUBLISH', log, 0) end
return grown
