-- Removes erased former summaries (field E, see _archive.lua), which no reader sees any more, from one block of
-- archives. This does not change the conversation, and may be repeated. After _archived.lua.
--
-- KEYS  state: hash; copy: of an expansion, a sorted set; then keys that it asked for
--
-- Returns how many blocks may have more; or {'keys', ...}: see _archive.lua.
use_archives()
use_places()
contents.use()
local state, copy = KEY.state, KEY.copy
local blocks = archive_index.blocks(state)
local time, sequence, newest, done = unpack(archive_index.erased or {}) -- at most 4
if not time then return 0 end

local block, left = nil, 0
for _, one in ipairs(blocks) do
  if one.revision > done and one.revision <= newest then
    block = block or one
    left = left + 1
  end
end
local messages = string.sub(state, 1, -2) .. 'm'
local erased, names, others = {}, {}, {} -- others: places of messages that were given the id of an erased one in the meantime
for _, record in ipairs(block and archive_index.records(state, block) or {}) do
  if archive_index.is_erased(record) then
    erased[#erased + 1] = record
    names[#names + 1] = archive_of(state, record)
    contents.declare(state, contents.held(state, record[OF.former]), names)
    local place = redis.call('HGET', state, field_of(record[OF.former]))
    local its_time, its_sequence
    if place then its_time, its_sequence = place_of(place) end
    if place and (its_time ~= record[OF.former_time] or its_sequence ~= record[OF.former_sequence]) then
      others[record] = {string.format('%.0f', its_time), its_sequence}
      names[#names + 1] = messages
      for _, archive in ipairs((archive_index.at(state, its_time, its_sequence))) do names[#names + 1] = archive_of(state, archive) end
    end
  end
end
local ask = undeclared_keys(names)
if ask then return ask end

redis.call('HDEL', state, 'z') -- a write that takes no memory; after it, a full server accepts the others
for _, record in ipairs(erased) do
  local key, id = archive_of(state, record), record[OF.former]
  local member = locate_live(key, string.format('%.0f', record[OF.former_time]), record[OF.former_sequence], id)
  local other, now = others[record], nil
  if other then now = locate_live(messages, other[1], other[2], id) or find_archived(state, other[1], other[2], id) end
  if member then
    redis.call('ZREM', key, member)
    -- The write of a message with contents has removed those that its id had before.
    if contents.has(member) and not (now and contents.has(now)) then contents.set(state, id, {}) end
    local characters = characters_of(member)
    record[OF.messages] = record[OF.messages] - 1
    record[OF.characters], record[OF.tokens] = record[OF.characters] - characters, record[OF.tokens] - math.ceil(characters / 4)
  end
  if not other then redis.call('HDEL', state, field_of(id)) end
  local compaction = redis.call('HGET', state, '^' .. id)
  if compaction and tonumber(compaction) < record[OF.revision] then redis.call('HDEL', state, '^' .. id) end
  record[OF.former], record[OF.former_time], record[OF.former_sequence] = nil, nil, nil
end
if #erased > 0 then archive_index.write_block(state, block) end
if left > 1 then
  local records = archive_index.records(state, block)
  done = records[#records][OF.revision]
  redis.call('HSET', state, 'E', struct.pack('>i7I4I6I6', time, sequence, newest, done))
  return left - 1
end
redis.call('HDEL', state, 'E')
-- A copy that was begun after the erasure has them, too.
if redis.call('HDEL', state, 'X') == 1 then redis.call('UNLINK', copy) end
return 0
