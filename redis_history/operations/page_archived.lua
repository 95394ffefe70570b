-- Reads the messages of a window, live and archived. After _archive.lua and _locate.lua.
--
-- KEYS  1 state (hash)   2 messages (sorted set)
-- ARGV  as for page.lua   7 'c' in a cluster
-- Returns for each set: 0 for the live messages, else the revision of the archive; the id of the former summary in it, or
-- ''; and its members in the window, ascending. These include the first (or last) `limit` of all sets, and all others of
-- their positions. Or {'keys', ...}: see _archive.lua.
use_archives()
local archives = archives_in(redis.call('HGET', KEYS[1], 'w'))
local ask = undeclared_archives(KEYS[1], archives, ARGV[7])
if ask then return ask end
local limit, newest = tonumber(ARGV[1]), ARGV[2] == '1'
local sets = {}
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
if first then
  sets[1] = {0, tonumber(first), tonumber(redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2])}
end
for _, archive in ipairs(archives) do
  sets[#sets + 1] = archive
end
table.sort(sets, function(one, other)
  if newest then return one[3] > other[3] end
  return one[2] < other[2]
end)
local answer, total, edge = {}, 0, nil
for _, set in ipairs(sets) do
  if edge and total >= limit and (newest and set[3] < edge or not newest and set[2] > edge) then break end
  local key = set[1] == 0 and KEYS[2] or archive_of(KEYS[1], set[1])
  local from, to = 0, redis.call('ZCARD', key)
  if ARGV[3] ~= '' then from = rank_of(key, ARGV[3], tonumber(ARGV[4])) end
  if ARGV[5] ~= '' then to = rank_of(key, ARGV[5], tonumber(ARGV[6])) end
  if newest then from = math.max(from, to - limit) else to = math.min(to, from + limit) end
  if from < to then
    local members = redis.call('ZRANGE', key, from, to - 1)
    local outer = members[newest and 1 or #members]
    local time = redis.call('ZSCORE', key, outer)
    total = total + #members
    time = tonumber(time)
    if not edge or newest and time < edge or not newest and time > edge then edge = time end
    local size = redis.call('HGET', KEYS[1], '#' .. set[1])
    answer[#answer + 1] = tonumber(set[1])
    answer[#answer + 1] = size and string.match(size, '^%d+ %d+ %d+ %x+ (.*)$') or ''
    answer[#answer + 1] = members
  end
end
return answer
