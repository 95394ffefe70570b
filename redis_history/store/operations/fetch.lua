-- Reads the messages found by a search, with the messages before and after each. After _archive.lua and _locate.lua.
--
-- KEYS  state: hash; messages: sorted set; documents: one for each message
-- ARGV  generation: of the documents
--       around: how many messages to read before and after each
--       sequences: of each, of a summary with a minus; then 'c' in a cluster, or ''
--
-- Returns for each {members from first to last, the index of the message (from 0), 1 if they are archived}, or {} if it was
-- removed. The neighbours of an archived message are from its archive. Or {'keys', ...}: see _archive.lua.
use_archives()
use_places()
local around = tonumber(ARG.around)
local known = redis.call('HMGET', KEY.state, 'i', 's')
local standing = 0 -- the sequence of the live summary, which an archived message shares
if known[2] then standing = sequence_at(KEY.state, known[2]) or 0 end

local ask = {'keys'}

local function beside(key, timestamp, sequence, archived)
  local rank = rank_of(key, timestamp, sequence)
  local first = math.max(0, rank - around)
  local members = redis.call('ZRANGE', key, first, rank + around)
  local member = members[rank - first + 1]
  if member and sequence_of(member) == sequence then return {members, rank - first, archived} end
end

-- The same in an archive, without a summary that was erased.
local function beside_archived(archive, timestamp, sequence)
  local found = beside(archive_of(KEY.state, archive), timestamp, sequence, 1)
  if not found or not archive_index.is_erased(archive) then return found end
  local members, at = {}, found[2]
  for i, member in ipairs(found[1]) do
    if id_of(member) ~= archive[OF.former] then
      members[#members + 1] = member
    elseif i == found[2] + 1 then
      return nil
    elseif i <= found[2] then
      at = at - 1
    end
  end
  return {members, at, 1}
end

local function look_up(timestamp, sequence)
  local of_summary = sequence < 0
  sequence = math.abs(sequence)
  if of_summary == (sequence == standing) then
    local found = beside(KEY.messages, timestamp, sequence, 0)
    if found then return found end
  end
  if of_summary then return {} end
  local archives = archive_index.at(KEY.state, tonumber(timestamp), sequence)
  local missing = undeclared_archives(KEY.state, archives)
  for i = 2, #(missing or '') do ask[#ask + 1] = missing[i] end
  for i = missing and 0 or #archives, 1, -1 do -- the oldest with this sequence is not a summary
    local found = beside_archived(archives[i], timestamp, sequence)
    if found then return found end
  end
  return {}
end

local answer = {}
for i = START.sequences, #ARGV - 1 do
  local timestamp = known[1] == ARG.generation and redis.call('HGET', KEYS[i], 'm')
  answer[i - 2] = timestamp and look_up(timestamp, tonumber(ARGV[i])) or {}
end
return #ask > 1 and ask or answer
