-- Writes the search documents of stored messages. After _documents.lua and _archived.lua.
--
-- KEYS  unfinished: the unfinished work of the bucket (hash), if there are no messages
-- ARGV  those of all changes, although the conversation does not change
--       epoch: when they were read; '' if this call has appended them
--       revision: when they were read or appended
--       count: how many messages
--       messages: for each its field of the state and its id; then for each its document: how many fields and values, and these.
--         Without messages: a name in `unfinished`. Then it lets more documents end with their conversation, or removes the
--         documents of an expired conversation, and returns 1 if there are more
--
-- Returns how many were written. Skips messages that were removed or changed since they were read: the writer of the change
-- has written the document, or the next search will. Skips former summaries: the messages they replaced have documents.
use_documents()
use_places()
local read_at, count, FIELDS = tonumber(ARG.revision), tonumber(ARG.count), 5
local fields, marks = {'e', 'i', 'l', 's', 'm'}, {}
for i = 1, count do
  fields[FIELDS + i] = ARGV[START.messages - 2 + 2 * i]
  marks[i] = '^' .. ARGV[START.messages - 1 + 2 * i]
end
local known = redis.call('HMGET', state, unpack(fields)) -- at most 1,005
if count == 0 then
  if moving(token) then return 0 end
  local prefix, newest = string.match(redis.call('HGET', KEY.unfinished, ARGV[START.messages]) or '', '^(.*) (%d+)$')
  if prefix and known[2] and documents_of(known[2]) == prefix then
    local before = redis.call('HGET', state, 'y')
    if known[3] and before then renew_documents(known[2], clock(), known[3]) end
    local after = redis.call('HGET', state, 'y')
    if after and after ~= before then return 1 end -- unchanged: what they have is enough
  elseif prefix then
    local names, left = {}, math.max(0, newest - 250)
    for sequence = left + 1, newest do
      names[#names + 1] = prefix .. format('%.0f', sequence)
      names[#names + 1] = prefix .. format('%.0f', -sequence)
    end
    if #names > 0 then attempt('UNLINK', unpack(names)) end -- at most 500
    if left > 0 then
      redis.call('HSET', KEY.unfinished, ARGV[START.messages], prefix .. ' ' .. format('%.0f', left))
      return 1
    end
  end
  redis.call('HDEL', KEY.unfinished, ARGV[START.messages])
  return 0
end
-- A conversation that was deleted since, and created again, may have other messages with the same ids.
if not known[1] or ARG.epoch ~= '' and ARG.epoch ~= known[1] then return 0 end
-- A document written on the node that imports its slot would collide with the document that has yet to be migrated.
if moving(token) then return 0 end
marks = known[5] and redis.call('HMGET', state, unpack(marks)) or {} -- at most 1,000
local now, generation, written, ends = clock(), known[2], 0, nil
if not generation then
  generation = token
  redis.call('HSET', state, 'i', generation, 'O', '1')
end
if known[3] then ends = document_ends(now, known[3]) end
local prefix, at = documents_of(generation), START.messages + 2 * count

-- Whether a message is archived now; it may have moved since it was read.
local function is_archived(timestamp, sequence, id)
  if #archive_index.at(state, timestamp, sequence) == 0 then return false end
  return not locate_live(messages, format('%.0f', timestamp), sequence, id)
end

-- One check for all: new messages have no documents.
local keys = {}
for i = 1, count do
  if known[FIELDS + i] then
    local _, sequence = place_of(known[FIELDS + i])
    keys[#keys + 1] = prefix .. (ARGV[START.messages - 1 + 2 * i] == known[4] and -sequence or sequence)
  end
end
local anew = #keys == 0 or attempt('EXISTS', unpack(keys)) == 0 -- at most 1,000

for i = 1, count do
  local place, to = known[FIELDS + i], at + ARGV[at]
  local id = ARGV[START.messages - 1 + 2 * i]
  local live_summary = id == known[4]
  if place and (live_summary or not marks[i]) then
    local timestamp, sequence, revision, whose = place_of(place)
    if revision <= read_at and (ARG.epoch ~= '' or whose == mark) then
      local archived = not live_summary and is_archived(timestamp, sequence, id)
      document(prefix, generation, live_summary and -sequence or sequence, timestamp, at + 1, to, ends, anew, archived)
      written = written + 1
    end
  end
  at = to + 1
end
return written
