-- Appends that are more than new messages of an existing conversation: repeated ones, those that replace all messages, and
-- those above a cap. After _journal.lua and _trim.lua; a part of append.lua, whose locals it uses.

-- Where messages of this call were that have left or were replaced since, by the journal:
-- {index, revision, sequence, timestamp, 1} by index.
local function departed()
  local found, own, of_call = {}, {}, pack('>I3', mark)
  for i = 1, count do
    own[i] = ';' .. sub(ARGV[FIRST + (i - 1) * WIDTH], 2) .. of_call
  end
  for i, place in ipairs(redis.call('HMGET', state, unpack(own))) do -- at most 1,000
    if place then
      local timestamp, sequence, changed = place_of(place)
      found[i] = {i - 1, changed, sequence, format('%.0f', timestamp), 1}
    end
  end
  return found
end

-- An outcome without a change, kept for later copies.
local function ended(outcome)
  use_journal()
  return unchanged(seen or look(updated, journal), epoch, outcome)
end

-- The reply to a call whose messages are all stored, or may have been stored by an earlier copy of it, or conflict with
-- stored ones; nil if it has something to write. Sets `stored`, and takes the messages in it from the totals.
local function repeated_messages()
  local conflict, newest
  local owned = 0
  for i = 1, count do
    local place = known[FIELDS + i]
    if place then
      if not stored then
        stored = {}
        use_places()
        use_archives()
      end
      local at = FIRST + (i - 1) * WIDTH
      local head, rest = ARGV[at + 1], ARGV[at + 2]
      local id, given = id_at(rest, 1), byte(head, -1) > 0 and sub(head, -1 - byte(head, -1), -2)
      local timestamp, sequence, changed, whose = place_of(place)
      local time, own = format('%.0f', timestamp), whose == mark
      local there, erased = locate_live(messages, time, sequence, id), nil
      if not there then
        local names, _ = {}, nil
        note_archives(names, place)
        local ask = undeclared_keys(names)
        if ask then return ask end
        there, _, _, erased = find_archived(state, time, sequence, id)
      end
      if erased then -- its place is still to be removed
        known[FIELDS + i] = false
      else
        if there and not is_same(there, head, rest) or given and tonumber(given) ~= timestamp then
          conflict = conflict or id
        end
        stored[#stored + 1] = {i - 1, changed, sequence, time, own and 1 or 0}
        if own then owned = owned + 1 end
        newest = changed
        local c = struct.unpack('>I3', head)
        characters, tokens = characters - c, tokens - math.ceil(c / 4)
      end
    end
  end
  if stored and #stored == 0 then stored = nil end
  local mine = owned > 0
  if mine and asks or (conflict or owned < count) and (mine or asks or not epoch or sent > now) then
    -- An earlier copy may have been executed, and its messages were removed or replaced since, or edited and edited
    -- back.
    use_journal()
    use_places()
    seen = look(updated, journal)
    if seen.outcome then
      force_write()
      return seen.outcome
    end
    local left = departed()
    if mine or next(left) then
      local items, at = {}, 1
      for i = 1, count do
        local now_there = stored and stored[at]
        if now_there and now_there[1] == i - 1 then at = at + 1 else now_there = nil end
        items[i] = left[i] or now_there or {i - 1, 0, 0, '0', 0}
        if items[i][2] == 0 and sent <= seen.horizon then return late(seen) end -- it may have been of this call
        newest = math.max(newest or 0, items[i][2])
      end
      for _, item in ipairs(items) do
        if item[2] == 0 then item[2] = newest end
      end
      force_write()
      return {'stored', {revision, 0, 0}, items}
    end
    local refusal = late(seen)
    if refusal then return refusal end
  end
  if conflict then return ended({'conflict', conflict}) end
  if stored and #stored == count then
    -- All messages are stored already. The precondition holds if it held when these messages were stored.
    if mine or (ARG.expected_revision == '' or tonumber(ARG.expected_revision) + 1 == newest) and (sub(ARG.condition, 1, 6) ~= 'absent' or newest == 1) then
      local outcome = {'stored', {revision, 0, 0}, stored}
      if not mine then return ended(outcome) end
      if string.find(change.flags, '1', 1, true) then
        use_journal()
        force_write()
      end
      return outcome
    end
  end
end

-- The reply to a call without anything to write; nil for others.
local function settled()
  if not replace then return repeated_messages() end
  use_journal()
  local reply
  seen, reply = decided(updated, journal)
  if reply then return reply end
  for i = 1, count do known[FIELDS + i] = false end
  before_count, known[5] = known[5] or 0, 0
end

-- Removes all messages, for those that take their place. `head`: of the log entry. Returns what purge.lua needs.
local function empty_before(head, above_cap)
  if above_cap then redis.call('HSET', state, 'x', head) end -- takes memory, so that a full server refuses here
  note_recent(seen, known[3], known[9])
  local pending = schedule_purge(generation, before_count + (archived_count or 0), lives or ARG.ttl)
  empty(seen)
  generation, archives_end = nil, nil
  return pending
end

-- Removes the oldest messages above the cap, and writes the log entry, which names them. Whether pinned messages alone exceed
-- the cap.
local function trim_to_cap(excess, head, entry, at_start_before)
  use_journal()
  use_places()
  local places
  entry[3], entry[4], places = trim(excess, generation)
  redis.call('HSET', state, 'h', revision)
  local recent = recent_places(places, at_start_before)
  if #recent > 0 then
    seen = seen or look(updated, journal)
    note_places(seen, recent)
  end
  write_log(head, entry)
  return #entry[3] < excess
end
