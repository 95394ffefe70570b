-- Changes the turns of a conversation by a call: see _turns.lua. It is not a change of the history: it creates neither a revision
-- nor an entry in the change log. After _change.lua.
--
-- ARGV  action: 'open', for stored messages; 'retry', to make turns due now; 'wait', to make them wait; 'drop', to end them
--       all_agents: '1' of all agents, '0' of one
--       agent: name of that one
--       due: when the turn is due, in milliseconds
--       publish_command: the command that publishes (_publish.lua)
--       ids: for 'open', of the messages
--
-- Returns {revision, number of changed turns}; or {'messages'} if none of the messages exists, {'turns'} (of too many agents),
-- {'revision', current} | {'missing'} | {'run'} | {'late', …}; then nothing was written.
-- include _turns
use_journal()
local TURN, action, all, agent, due = owed.TURN, ARG.action, ARG.all_agents == '1', ARG.agent, tonumber(ARG.due)
local known = redis.call('HMGET', state, 'e', 'r', 'u', 'g', 'P', 'U', 'R')
local turns, owner = owed.read(known[5]), known[6]
local names = owed.keys(turns)
if action == 'open' then
  for _, name in ipairs(owed.keys_of(agent, owner)) do names[#names + 1] = name end
end
local ask = undeclared_keys(names)
if ask then return ask end
local revision = tonumber(known[2] or 0)
local seen, reply = open_change(known[1], revision, known[3], known[4])
if reply then return reply end
if not known[1] then return unchanged(seen, false, {0, 0}) end

local now, count = math.floor(clock() / 1000), 0
local busy = owed.busy_until(known[7])
free()
if action == 'open' then
  local ids, fields = {}, {}
  use_places()
  for i = START.ids, #ARGV do fields[#fields + 1] = field_of(ARGV[i]) end
  for i, place in ipairs(redis.call('HMGET', state, unpack(fields))) do -- at most 256
    if place then ids[#ids + 1] = ARGV[START.ids - 1 + i] end
  end
  if #ids == 0 then return concluded(seen, true, {'messages'}) end
  if not owed.ask(turns, agent, owner, ids, due, now, busy) then return concluded(seen, true, {'turns'}) end
  count = 1
else
  owed.prune(turns, true)
  for at = #turns, 1, -1 do
    local turn = turns[at]
    local asked = all or turn[TURN.agent] == agent
    local chosen = asked and turn[TURN.status] ~= 'running'
    -- Messages that came during the answer would be the next turn.
    if asked and not chosen and action == 'drop' then
      local before = #turn[TURN.asks]
      owed.drop_asks(turn, function(_, _, claimed) return not claimed end)
      if #turn[TURN.asks] < before then count = count + 1 end
    end
    if chosen and action == 'drop' then
      owed.dequeue(turn[TURN.agent], turn[TURN.queue], 0)
      table.remove(turns, at)
    elseif chosen and action == 'wait' then
      owed.halt(turn, 'waiting')
    elseif chosen then
      turn[TURN.failures] = 0
      for i = 2, #turn[TURN.asks], 3 do turn[TURN.asks][i] = math.min(turn[TURN.asks][i], now) end
      owed.owe(turn, now, now)
      if busy > now then owed.watch(turn, busy, 0) end
    end
    if chosen then count = count + 1 end
  end
  owed.save(turns)
end
-- Wakes the subscribers of the conversation, which then read the state of its turns.
redis.call('LTRIM', log, 0, -1) -- changes nothing, but causes a notification if there is a log
-- include _publish
publish(ARG.publish_command, log, 0)
return concluded(seen, true, {revision, count})
