-- Reads the changes from a subscriber's cursor on, and the newest change. After _head.lua, _member.lua, _archive.lua,
-- _locate.lua, _archived.lua and _live.lua.
--
-- KEYS  state: hash; log: the change log, a list; messages: sorted set; further: keys that it asked for
-- ARGV  first: the first revision to read, 0: the oldest
--       most_entries: of the log
--       most_bytes: bytes of content after which no further entry is read
--       replies: for each streaming reply that the subscriber knows: sequence and size of the known content; then 'c' in a
--         cluster, or ''
--
-- Returns {epoch, revision, head of the newest entry, field o of the state or '', revision of the first entry, entries, replies}. An entry is {its bytes, its content}: the present members for an append, an
-- update or a compaction; the values of the fields for a record. A removed message is a list of its id, or an empty list if the
-- id is unknown. The entry of the subscriber's cursor has only the head. Streaming replies, at the end of the log only:
-- {sequence, timestamp, id, content that the subscriber lacks, size of the whole content, milliseconds until the writer counts as
-- dead}. Then the run, its queue and the time in milliseconds (see run.lua), the turns as turns.lua returns them, and the owner, a MessagePack value or ''. Or {'keys', ...}: see _head.lua, _archive.lua
-- and _live.lua.
use_archives()
use_places()
local state, log, messages = KEY.state, KEY.log, KEY.messages
local in_cluster = ARGV[#ARGV] == 'c'
-- ask: the reply that asks for keys
local epoch, revision, head, replaced, listed_replies, ask = head_of(state, log)
local exists = epoch ~= NO_EPOCH
local length = revision > 0 and redis.call('LLEN', log) or 0
local asked = tonumber(ARG.first)
local oldest = revision - length + 1
local first = math.max(asked, oldest)
local summary

-- Whether archives are declared. Otherwise it asks for them, for those of all entries together.
local function may_read(archives)
  local missing = undeclared_archives(state, archives)
  if not missing then return true end
  ask = ask or {'keys'}
  for i = 2, #missing do ask[#ask + 1] = missing[i] end
end

-- The member of an appended message. Summaries have the position of a message that they replaced.
local function appended(timestamp, sequence)
  local time = string.format('%.0f', timestamp)
  local member = locate(messages, time, sequence)
  if summary == nil then
    summary = redis.call('HGET', state, 's')
  end
  if member and not (summary and id_of(member) == summary) then return member end
  local archives = archive_index.at(state, timestamp, sequence)
  for i = may_read(archives) and #archives or 0, 1, -1 do
    member = locate(archive_of(state, archives[i]), time, sequence)
    local id = member and id_of(member) or ''
    if member and id ~= archives[i][OF.former] and not redis.call('HGET', state, '^' .. id) then return member end
  end
end

local function of_id(id, timestamp, sequence)
  local time = string.format('%.0f', timestamp)
  local live = locate_live(messages, time, sequence, id)
  if live then return live end
  return may_read((archive_index.at(state, timestamp, sequence))) and (find_archived(state, time, sequence, id)) or nil
end

local missing, first_missing = {}, nil -- by sequence, the list for its id

-- The members at these times and successive sequences.
local function all_appended(sequence, times, at)
  local found, items = {}, {}
  if #times > 8 then -- usually they are adjacent
    local rank = rank_of(messages, string.format('%.0f', times[1]), sequence)
    for _, member in ipairs(redis.call('ZRANGE', messages, rank, rank + #times - 1)) do
      found[sequence_of(member)] = member
    end
    if redis.call('HGET', state, 's') then found = {} end
  end
  for i, time in ipairs(times) do
    local member = exists and (found[sequence + i - 1] or appended(time, sequence + i - 1))
    items[i] = member or {}
    if not member then
      missing[sequence + i - 1] = items[i]
      first_missing = first_missing or at
    end
  end
  return items
end

local function unpacked(entry)
  return cmsgpack.unpack(string.sub(entry, 11))
end

local function content_of(entry, at)
  local high, low = struct.unpack('>BI6', entry)
  local kind = math.floor(high / 16)
  if kind == 1 then
    return all_appended(struct.unpack(#entry == 12 and '>I2' or '>I4', string.sub(entry, 11)), {high % 16 * 281474976710656 + low}, at)
  elseif kind == 2 or kind == 3 then
    local places = unpacked(entry)
    return all_appended(places[1], places[2], at)
  elseif kind == 4 or kind == 8 or kind == 11 then
    local place = unpacked(entry)
    return {exists and of_id(place[1], place[2], place[3]) or {place[1]}}
  elseif kind == 6 then
    local names, values = string.match(string.sub(entry, 11), '^%Z*'), {}
    for i = 1, #names do
      values[i] = redis.call('HGET', state, string.sub(names, i, i)) or {}
    end
    return values
  end
  return {}
end

local entries, bytes = {}, 0
local most, budget = tonumber(ARG.most_entries), tonumber(ARG.most_bytes)
local at = first - oldest
while #entries < most and bytes < budget and at < length do
  for _, entry in ipairs(redis.call('LRANGE', log, at, at + math.min(16, most - #entries) - 1)) do
    if oldest + at == asked then
      entries[1] = {string.sub(entry, 1, 10), {}}
    else
      local ok, content = pcall(content_of, entry, at)
      if not ok then content = {} end -- an unknown entry: the client rejects it
      entries[#entries + 1] = {entry, content}
      for _, item in ipairs(content) do
        if type(item) == 'string' then bytes = bytes + #item end
      end
    end
    at = at + 1
    if bytes >= budget then break end
  end
end

if ask then return ask end

-- The entries of the changes that removed messages have their ids.
local from = first_missing
while from and next(missing) and from < length do
  local some = redis.call('LRANGE', log, from, from + 255)
  for _, entry in ipairs(some) do
    local kind = #entry > 10 and math.floor(string.byte(entry) / 16) or 0
    local ok, places = pcall(unpacked, entry)
    local ids, sequences = {}, {}
    if ok and kind == 7 then
      ids, sequences = places[1], places[2]
    elseif ok and (kind == 2 or kind == 3) then
      ids, sequences = places[3], places[4]
    end
    for i, sequence in ipairs(sequences) do
      if missing[sequence] then
        missing[sequence][1] = ids[i]
        missing[sequence] = nil
      end
    end
  end
  from = from + 256
end
local replies = {}
if listed_replies and at >= length then
  use_replies()
  local had = {}
  for i = START.replies, #ARGV - 1, 2 do had[tonumber(ARGV[i])] = tonumber(ARGV[i + 1]) end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local contents = {'keys'}
  for i, reply in ipairs(replies_in(listed_replies)) do
    local token, sequence, timestamp, ends = reply[1], reply[2], reply[3], reply[4]
    local time = string.format('%.0f', timestamp)
    local member = locate(messages, time, sequence)
    local content, size = read_content(state, token, had[sequence] or 0, contents, in_cluster)
    replies[i] = {sequence, time, member and id_of(member) or '', content, size, ends - now}
  end
  if #contents > 1 then return contents end
end
local run = redis.call('HMGET', state, 'R', 'Q', 'P', 'U')
local turns
if run[3] then
-- include _turns
  turns = owed.read(run[3])
  owed.prune(turns)
end
local clock = run[1] and redis.call('TIME') or {0, 0}
return {epoch, revision, head, replaced or '', first, entries, replies, run[1] or '', run[2] or '',
        clock[1] * 1000 + math.floor(clock[2] / 1000), turns and #turns > 0 and cmsgpack.pack(turns) or '', run[4] or ''}
