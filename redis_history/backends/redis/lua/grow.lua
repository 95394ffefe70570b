-- Appends to the content of a reply that is being written, and lets its writer live on. No change of the conversation: only
-- the listeners are woken. After _change.lua, _member.lua and _live.lua. The token is that of the reply.
--
-- KEYS  5 content (string)
-- ARGV  10 where these records begin   11 the records, or ''   12 '1' to lengthen the life of the writer
--
-- Returns how many bytes the content has now; -1: this reply is not being written any more. Records that do not begin where
-- the content ends are not appended: they are there already, or the server has lost what was before them.
use_replies()
local known = redis.call('HMGET', state, '~', 'l')
local at, reply
for i, one in ipairs(replies_in(known[1])) do
  if one[1] == token then at, reply = 33 * i - 32, one end
end
if not reply then return -1 end
local size, grew = redis.call('STRLEN', KEYS[5]), false
if ARGV[11] ~= '' and size == tonumber(ARGV[10]) then
  size, grew = redis.call('APPEND', KEYS[5], ARGV[11]), true
end
if ARGV[12] == '1' then
  local now = clock()
  local record = reply_record(token, reply[2], reply[3], now)
  redis.call('HSET', state, '~', string.sub(known[1], 1, at - 1) .. record .. string.sub(known[1], at + 33))
  local ttl = ARGV[6] ~= '' and ARGV[6] or known[2]
  if ttl then
    live(ARGV[6], now, known[2])
    redis.call('PEXPIREAT', KEYS[5], format('%.0f', math.floor(now / 1000) + ttl))
  end
end
if grew then
  redis.call('LTRIM', log, 0, -1) -- changes nothing, but is announced as every command on the log
  if ARGV[8] ~= '' then redis.call('PUBLISH', ARGV[8], 0) end
end
return size
