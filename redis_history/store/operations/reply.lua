-- Reads messages that were streaming a moment ago. After _member.lua, _locate.lua and _live.lua.
--
-- KEYS  state: hash; messages: sorted set
-- ARGV  positions: timestamp and sequence of each; then 'c' in a cluster, or ''
--
-- Returns for each {member, content, milliseconds until its writer counts as dead}, {member} if it has ended, {} if it was removed;
-- or {'keys', ...}: see _live.lua.
use_replies()
use_places()
local state, messages, found = KEY.state, KEY.messages, {}
local listed, time = redis.call('HGET', state, '~'), redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local missing, in_cluster = {'keys'}, ARGV[#ARGV] == 'c'
for i = START.positions, #ARGV - 1, 2 do
  local sequence = tonumber(ARGV[i + 1])
  local member, reply = locate(messages, ARGV[i], sequence), reply_at(listed, sequence)
  -- A summary has the position of the last message that it replaced.
  local replaced = member and not is_live(member) and redis.call('HGET', state, '^' .. (id_of(member) or ''))
  if not member or replaced then
    found[#found + 1] = {}
  elseif not is_live(member) then
    found[#found + 1] = {member}
  else
    found[#found + 1] = {member, reply and read_content(state, reply[1], 0, missing, in_cluster) or '', reply and reply[4] - now or 0}
  end
end
return #missing > 1 and missing or found
