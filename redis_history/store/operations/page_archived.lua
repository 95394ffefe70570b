-- Reads the messages of a window, live and archived. After _archive.lua and _locate.lua.
--
-- KEYS  state: hash; messages: sorted set; then archives that it asked for
-- ARGV  as for page.lua
-- Returns for each set: 0 for the live messages, else the revision of the archive; the id of the former summary in it, or
-- ''; and its members in the window, ascending. These include the first (or last) `limit` of all sets, and all others of
-- their positions. Or {'keys', ...}: see _archive.lua.
use_archives()
use_places()
local state, messages, limit, newest = KEY.state, KEY.messages, tonumber(ARG.limit), ARG.newest == '1'
local after, after_sequence, before, before_sequence = ARG.after, ARG.after_sequence, ARG.before, ARG.before_sequence
local lower, upper = tonumber(after) or -math.huge, tonumber(before) or math.huge

-- The live messages and the archives are looked at in the order in which they reach into the window, and the index is read
-- only as far as that takes. `ready`: those that were read, the next one last; `blocks`: the others, the next one last.
local function reach(one)
  return newest and one.last or not newest and -one.first
end
local function by_reach(one, other) return reach(one) < reach(other) end
local function is_within(one) return one.first <= upper and one.last >= lower end
local ready, blocks, answer, missing, total, edge = {}, {}, {}, {}, 0, nil
for _, block in ipairs(archive_index.blocks(state)) do
  if is_within(block) then blocks[#blocks + 1] = block end
end
table.sort(blocks, by_reach)
local first = redis.call('ZRANGE', messages, 0, 0, 'WITHSCORES')[2]
if first then
  local last = redis.call('ZRANGE', messages, -1, -1, 'WITHSCORES')[2]
  local live = {first = tonumber(first), last = tonumber(last), key = messages, revision = 0, former = ''}
  if is_within(live) then ready[1] = live end
end

local function next_set()
  while #blocks > 0 and (#ready == 0 or reach(blocks[#blocks]) >= reach(ready[#ready])) do
    for _, record in ipairs(archive_index.records(state, table.remove(blocks))) do
      local set = {first = record[OF.first], last = record[OF.last], record = record, revision = record[OF.revision]}
      if is_within(set) then
        set.former = record[OF.former] or ''
        if archive_index.is_erased(record) then set.former, set.erased = '', record[OF.former] end
        ready[#ready + 1] = set
      end
    end
    table.sort(ready, by_reach)
  end
  local one = table.remove(ready)
  if one and one.record then one.key = archive_of(state, one.record) end
  return one
end

-- The outermost time read until `limit` is reached: messages behind it are not needed.
local function note(count, time)
  if total < limit and (not edge or newest and time < edge or not newest and time > edge) then edge = time end
  total = total + count
end

local function read(set)
  local key, from, to = set.key, 0, -1
  if set.first <= lower or set.last >= upper or not set.record then
    to = redis.call('ZCARD', key)
    if after ~= '' then from = rank_of(key, after, tonumber(after_sequence)) end
    if before ~= '' then to = rank_of(key, before, tonumber(before_sequence)) end
    if newest then from = math.max(from, to - limit) else to = math.min(to, from + limit) end
    if from >= to then return end
    to = to - 1
  elseif newest then
    from = -limit
  else
    to = limit - 1
  end
  local members = redis.call('ZRANGE', key, from, to)
  local count, time = #members, newest and set.first or not newest and set.last
  if count == 0 then return end
  if count == limit or not set.record then time = tonumber(redis.call('ZSCORE', key, members[newest and 1 or count])) end
  if set.erased then
    local left = {}
    for _, member in ipairs(members) do
      if id_of(member) ~= set.erased then left[#left + 1] = member end
    end
    members = left
  end
  note(#members, time)
  answer[#answer + 1] = set.revision
  answer[#answer + 1] = set.former
  answer[#answer + 1] = members
end

while true do
  local one = next_set()
  if not one or total >= limit and (newest and one.last < edge or not newest and one.first > edge) then break end
  if one.record and undeclared_keys({one.key}) then
    -- It counts as if its messages were in the window: if they are not, the next call asks for more.
    missing[#missing + 1] = one.key
    note(one.record[OF.messages], newest and one.first or one.last)
  else
    read(one)
  end
end
return undeclared_keys(missing) or answer
