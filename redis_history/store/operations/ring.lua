-- Wakes another worker for a turn that is due, because the one that was woken has no room. After _declared.lua.
--
-- KEYS  state: hash
-- ARGV  agent: its name
local state, agent = KEY.state, ARG.agent
-- include _turns
local turn, time = owed.find(owed.read(redis.call('HGET', state, 'P')), agent), redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if turn and turn[owed.TURN.status] == 'owed' and turn[owed.TURN.due] <= now then owed.ring(agent, now) end
