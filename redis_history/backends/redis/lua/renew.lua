-- Records that the writer of a reply is alive. Does not change the conversation. The token is that of the reply. Returns
-- nothing. After _change.lua, _member.lua, _live.lua and _life.lua.
--
-- KEYS  5 content (string)
use_replies()
local known = redis.call('HMGET', state, '~', 'l')
for i, reply in ipairs(replies_in(known[1])) do
  if reply[1] == token then
    local at, now = 33 * i - 32, clock()
    local record = reply_record(token, reply[2], reply[3], now)
    redis.call('HSET', state, '~', string.sub(known[1], 1, at - 1) .. record .. string.sub(known[1], at + 33))
    local ttl = ARGV[6] ~= '' and ARGV[6] or known[2]
    if ttl then
      live(ARGV[6], now, known[2])
      redis.call('PEXPIREAT', KEYS[5], format('%.0f', math.floor(now / 1000) + ttl))
    end
  end
end
