-- Removes what is out of date in the lists and queues of turns: of a conversation that has expired, or whose questions were deleted;
-- or of an owner whose queue is empty. After _declared.lua.
--
-- KEYS  subject: the state of the conversation (hash), or the owner's queue (sorted set)
--       turns: for an owner the turns of the agent, else the first of the lists of turns (sorted sets)
-- ARGV  entry: the owner's, or ''
--
-- Returns nothing, or {'keys', ...}: see _change.lua.
local state, entry = KEY.subject, ARG.entry
if entry ~= '' then
  if redis.call('EXISTS', KEY.subject) == 0 then redis.call('ZREM', KEY.turns, entry) end
  return
end
-- include _turns
local turns = owed.read(redis.call('HGET', state, 'P'))
local ask = undeclared_keys(owed.keys(turns))
if ask then return ask end
redis.call('HDEL', state, 'z') -- takes no memory, and after it, a full server accepts the writes below
owed.prune(turns, true)
owed.save(turns)
