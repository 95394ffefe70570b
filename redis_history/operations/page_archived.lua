-- Reads the messages of a window, live and archived. After _archive.lua and _locate.lua.
--
-- KEYS  1 state (hash)   2 messages (sorted set)   then archives that it asked for
-- ARGV  as for page.lua   7 'c' in a cluster
-- Returns for each set: 0 for the live messages, else the revision of the archive; the id of the former summary in it, or
-- ''; and its members in the window, ascending. These include the first (or last) `limit` of all sets, and all others of
-- their positions. Or {'keys', ...}: see _archive.lua.
use_archives()
use_places()
local state, messages, limit, newest, cluster = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2] == '1', ARGV[7]
local after, after_sequence, before, before_sequence = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local lower, upper = tonumber(after) or -math.huge, tonumber(before) or math.huge

-- What is still to be looked at: blocks of archives, archives, and the live messages, each with its first and last time.
-- The next is always that which reaches furthest, so that few blocks are read, however many there are.
local waiting, missing = {}, {}
local function add(first, last, what)
  if first <= upper and last >= lower then waiting[#waiting + 1] = {first = first, last = last, what = what} end
end
local function next_waiting()
  local best
  for i, one in ipairs(waiting) do
    if not best or newest and one.last > waiting[best].last or not newest and one.first < waiting[best].first then best = i end
  end
  return best and table.remove(waiting, best)
end

local first = redis.call('ZRANGE', messages, 0, 0, 'WITHSCORES')[2]
if first then
  local last = redis.call('ZRANGE', messages, -1, -1, 'WITHSCORES')[2]
  add(tonumber(first), tonumber(last), {key = messages, revision = 0, former = ''})
end
for _, block in ipairs(archive_index.blocks(state)) do add(block.first, block.last, {block = block}) end

local answer, total, edge = {}, 0, nil
local function read(set)
  local key, from, to = set.key, 0, redis.call('ZCARD', set.key)
  if after ~= '' then from = rank_of(key, after, tonumber(after_sequence)) end
  if before ~= '' then to = rank_of(key, before, tonumber(before_sequence)) end
  if newest then from = math.max(from, to - limit) else to = math.min(to, from + limit) end
  if from >= to then return end
  local members = redis.call('ZRANGE', key, from, to - 1)
  local outer = members[newest and 1 or #members]
  local time = tonumber(redis.call('ZSCORE', key, outer))
  if set.erased then
    local left = {}
    for _, member in ipairs(members) do
      if id_of(member) ~= set.erased then left[#left + 1] = member end
    end
    members = left
  end
  total = total + #members
  if not edge or newest and time < edge or not newest and time > edge then edge = time end
  answer[#answer + 1] = set.revision
  answer[#answer + 1] = set.former
  answer[#answer + 1] = members
end

-- An archive that is not declared counts as if its messages were in the window: if they are not, the next call asks for more.
local function skip(set, record)
  missing[#missing + 1] = set.key
  total = total + record[OF.messages]
  local time = newest and record[OF.first] or record[OF.last]
  if not edge or newest and time < edge or not newest and time > edge then edge = time end
end

while true do
  local one = next_waiting()
  if not one or edge and total >= limit and (newest and one.last < edge or not newest and one.first > edge) then break end
  if one.what.block then
    for _, record in ipairs(archive_index.records(state, one.what.block)) do
      local set = {key = archive_of(state, record), revision = record[OF.revision], former = record[OF.former] or ''}
      if archive_index.is_erased(record) then set.former, set.erased = '', record[OF.former] end
      set.record = record
      add(record[OF.first], record[OF.last], set)
    end
  elseif one.what.record and undeclared_keys({one.what.key}, cluster) then
    skip(one.what, one.what.record)
  else
    read(one.what)
  end
end
return undeclared_keys(missing, cluster) or answer
