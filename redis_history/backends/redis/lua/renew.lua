-- Records that the writer of a reply is alive. Does not change the conversation. The token is that of the reply. Returns
-- nothing. After _change.lua, _member.lua, _live.lua, _archive.lua, _document.lua and _life.lua.
--
-- KEYS  5 content (string)
use_replies()
use_documents()
local known = redis.call('HMGET', state, '~', 'l', 'i', 'a')
for i, reply in ipairs(replies_in(known[1])) do
  if reply[1] == token then
    local at, now = 33 * i - 32, clock()
    local record = reply_record(token, reply[2], reply[3], now)
    redis.call('HSET', state, '~', string.sub(known[1], 1, at - 1) .. record .. string.sub(known[1], at + 33))
    live(ARGV[6], now, known[2], known[3], known[4])
  end
end
