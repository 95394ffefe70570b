-- Records that the writer of a reply is alive. Does not change the conversation. Each call has its own token; that of the reply
-- is in the name of the content. After _change.lua, _member.lua, _live.lua, _archive.lua, _documents.lua and _life.lua.
--
-- KEYS  content: of the reply, a string
--
-- The writer was alive when it sent the call, which may have been long ago, so a delayed retry changes nothing.
--
-- Returns nothing, or {'late', ...}: see _change.lua; then nothing was written.
use_replies()
use_documents()
local known = redis.call('HMGET', state, '~', 'l', 'i', 'a', 'U', 'A', 'B')
local at, reply
for i, one in ipairs(replies_in(known[1])) do
  if content_of_reply(state, one[1]) == KEY.content then at, reply = 33 * i - 32, one end
end
if not reply then return end
if known[2] or ARG.ttl ~= '' then -- the keys whose life the call extends
  local names = contents_in(archives_due(known[2], known[4]), known[1])
  for _, list in ipairs(lists_of({known[5], known[6], known[7]})) do names[#names + 1] = list end
  local ask = undeclared_keys(names)
  if ask then return ask end
end
local now = clock()
if sent > now or sent <= now - 1000 * LEASE then return {'late', format('%.0f', now), format('%.0f', now)} end
if sent / 1000 + LEASE > reply[4] or reply[4] > now / 1000 + LEASE then -- compares a float; the latter if the clock was set back
  local record = reply_record(reply[1], reply[2], reply[3], sent)
  redis.call('HSET', state, '~', string.sub(known[1], 1, at - 1) .. record .. string.sub(known[1], at + 33))
end
live(ARG.ttl, now, known[2], known[3], known[4])
