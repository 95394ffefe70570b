-- Removes all messages, including archived ones, in one call: writes the state anew without their ids, but with the
-- journal. After _archive.lua, _life.lua and _journal.lua.
local LOOKED_AT = 1000 -- messages, or entries of the journal

-- Keeps the positions of those messages that a late append may ask for, before all leave. If they are not found in a short time,
-- such appends cannot be decided. `newest` and `periods`: fields q and p.
local function note_recent(seen, newest, periods)
  if not periods then return end
  local since, begun, at_its_start, at_start_before = tonumber(newest), struct.unpack('>I4I6I6', periods)
  local period = math.floor(clock() / LIFETIME)
  if begun >= period then since = at_start_before elseif begun == period - 1 then since = at_its_start end
  if newest - since <= 0 then return end
  use_archives()
  use_places()
  local keys, total, fields, blocks = {messages}, redis.call('ZCARD', messages), {}, archive_index.blocks(state)
  for i = #blocks, 1, -1 do
    if total > LOOKED_AT then break end
    for _, archive in ipairs(blocks[i].high > since and archive_index.records(state, blocks[i]) or {}) do
      if archive[OF.high] > since then
        keys[#keys + 1] = archive_of(state, archive)
        total = total + archive[OF.messages]
      end
    end
  end
  for _, key in ipairs(keys) do
    for _, member in ipairs(redis.call('ZRANGE', key, -LOOKED_AT, -1)) do
      local id = sequence_of(member) > since and id_of(member)
      if id then fields[#fields + 1] = field_of(id) end
    end
    if total > LOOKED_AT then break end
  end
  if total > LOOKED_AT and #fields < newest - since then
    seen.forgotten = seen.now
    return
  end
  local places = {}
  if #fields > 0 then
    for i, place in ipairs(redis.call('HMGET', state, unpack(fields))) do -- at most 2,000
      if place then places[#places + 1] = {fields[i], place} end
    end
  end
  note_places(seen, places)
end

-- For calls that remove all messages: fields of the state, the journal (see look), and the reply if there is nothing to do.
local function open_removal()
  local known = redis.call('HMGET', state, 'e', 'r', 'n', 'l', 'i', 'm', 'N', 'u', 'g', 'U', 'A', 'B', '~', 'q', 'p')
  local owners = {known[10], known[11], known[12]}
  use_archives()
  local ask = undeclared_keys(lists_and(owners, contents_in(archive_index.keys(state), known[13], true))) or moving(known[5])
  if ask then return known, nil, ask end
  return known, open_change(known[1], tonumber(known[2] or 0), known[8], known[9])
end

-- Adds the journal to the fields and values `hset` of a state that is to take the place of the present one.
local function take_journal(seen, hset)
  local names, count = {}, seen.following - seen.first
  local too_long = count > LOOKED_AT
  if count > 0 and not too_long then
    for number = seen.first, seen.following - 1 do names[#names + 1] = entry_of(number) end
    for _, entry in ipairs(redis.call('HMGET', state, unpack(names))) do -- at most 1,000
      for _, name in ipairs(names_in(entry or '')) do names[#names + 1] = name end
      too_long = #names > 3 * LOOKED_AT
      if too_long then break end
    end
  end
  for _, name in ipairs(seen.names) do names[#names + 1] = ';' .. name end
  if too_long or #names > 3 * LOOKED_AT then -- copying would take too long
    names, seen.names, seen.first, seen.forgotten = {}, {}, seen.following, seen.now
  end
  if #names > 0 then
    for i, value in ipairs(redis.call('HMGET', state, unpack(names))) do -- at most 3,000
      if value then
        hset[#hset + 1] = names[i]
        hset[#hset + 1] = value
      end
    end
  end
end

-- Writes the state anew, with only the journal and the fields and values `hset`.
local function start_over(seen, hset)
  take_journal(seen, hset)
  redis.call('UNLINK', state)
  in_slices('HSET', state, hset)
end

-- Fields of the state that stay.
local STAYING = {'v', 'e', 'r', 'x', 'q', 't', 'b', 'u', 'l', 'f', 'p', 'o', 'R', 'Q', 'W', 'Z', 'N', 'P', '%', unpack(RECORD)} -- at most 26

-- Removes the messages. `seen`: the journal (see look).
local function empty(seen)
  local values = redis.call('HMGET', state, unpack(STAYING)) -- at most 26
  local hset = {'n', 0, 'c', 0, 'k', 0}
  for i, name in ipairs(STAYING) do
    if values[i] then
      hset[#hset + 1] = name
      hset[#hset + 1] = values[i]
    end
  end
  use_replies()
  forget_replies(state)
  redis.call('UNLINK', messages)
  archive_index.forget(state)
  contents.use()
  contents.forget(state)
  drop_copy()
  start_over(seen, hset)
end
