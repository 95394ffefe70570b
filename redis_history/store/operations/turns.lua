-- Reads the turns of a conversation. After _declared.lua.
--
-- KEYS  state: hash
--
-- Returns {its turns as in field P of the state (see _turns.lua), without deleted messages, or ''; its owner (field U) or ''}.
local state = KEY.state
-- include _turns
local known = redis.call('HMGET', state, 'P', 'U')
if not known[1] then return {'', ''} end
local turns = owed.read(known[1])
owed.prune(turns)
return {#turns > 0 and cmsgpack.pack(turns) or '', known[2] or ''}
