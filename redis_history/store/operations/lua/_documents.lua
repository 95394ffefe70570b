-- The removal, the renewal and the moves of search documents. After _member.lua, _archive.lua, _life.lua and _document.lua.
local AT_ONCE, RENEWED, FIRST_RENEWED = 500, 256, 4000 -- the last takes up to 20 ms

local forget_documents, keys_of, note_unfinished, note_move, schedule_purge

-- Makes these functions, and those of _document.lua; see use_archives.
local function use_documents()
  use_archives()
  use_document()

  function forget_documents(generation, sequences)
    if not generation then return end
    local prefix = documents_of(generation)
    for first = 1, #sequences, 1000 do
      local keys = {}
      for i = first, math.min(first + 999, #sequences) do
        keys[#keys + 1] = prefix .. sequences[i]
      end
      if not attempt('UNLINK', unpack(keys)) then -- all or none, at most 1,000
        for _, key in ipairs(keys) do attempt('UNLINK', key) end
      end
    end
  end

  -- The keys of the documents of members. Whether one is a summary is not known here: both keys it may have.
  function keys_of(prefix, members)
    local keys = {}
    for _, member in ipairs(members) do
      local sequence = sequence_of(member)
      if sequence > 0 then
        keys[#keys + 1] = prefix .. sequence
        keys[#keys + 1] = prefix .. '-' .. sequence
      end
    end
    return keys
  end

  -- Notes work that the caller does after this script, so that somebody else does it if the caller cannot. The note lasts
  -- half as long again as a conversation with this time to live.
  function note_unfinished(name, value, ttl)
    local unfinished = string.sub(registry, 1, -2) .. 'g'
    local left = attempt('PTTL', unfinished)
    attempt('HSET', unfinished, name, value)
    if not ttl or ttl == '' then
      attempt('PERSIST', unfinished)
    elseif left and (left == -2 or left >= 0 and left < math.floor(ttl * 1.5)) then
      attempt('PEXPIRE', unfinished, math.floor(ttl * 1.5))
    end
  end

  -- The same for documents that must say where their messages are: the value of 'j' with one more move.
  function note_move(moves, revision, first, last, ttl)
    note_unfinished('=' .. ARG.name, '', ttl)
    return (moves or '') .. format('%.0f %.0f %.0f;', revision, first, last)
  end

  -- Before all messages leave, archived ones too: removes their documents, or leaves that to purge.lua; then returns the
  -- names of the pending deletes, with blanks between. `count`: how many documents there are.
  function schedule_purge(generation, count, ttl)
    if not generation or count == 0 then return nil end
    local prefix, blocks = documents_of(generation), archive_index.blocks(state)
    if count <= AT_ONCE and #blocks <= 1 then
      local sets = archive_index.keys(state)
      sets[#sets + 1] = messages
      for _, set in ipairs(sets) do
        local keys = keys_of(prefix, attempt('ZRANGE', set, 0, -1) or {})
        for first = 1, #keys, 1000 do attempt('UNLINK', unpack(keys, first, math.min(first + 999, #keys))) end -- at most 1,000
      end
      return nil
    end
    local work, names = string.sub(registry, 1, -2) .. 'g', {}
    local lasts = ttl and ttl ~= '' and math.floor(ttl * 1.5)
    local pending_delete = work .. ':' .. generation
    if attempt('EXISTS', messages) == 1 and attempt('RENAME', messages, pending_delete) then
      if lasts then redis.call('PEXPIRE', pending_delete, lasts) else redis.call('PERSIST', pending_delete) end
      note_unfinished(generation, prefix, ttl)
      names[1] = generation
    end
    -- Those of archives by their sequences: there may be too many archives to keep the set of each.
    for _, block in ipairs(blocks) do
      local name = format('%s.%.0f', generation, block.revision)
      note_unfinished(name, format('%s %.0f %.0f', prefix, block.low, block.high), ttl)
      names[#names + 1] = name
    end
    return table.concat(names, ' ')
  end

  -- Lets documents live on with their conversation. A long one is renewed by its changes in turns, its live messages first,
  -- then its archives, the newest last; the next search in the conversation rewrites the documents that this misses.
  -- Until all have got the end of another time to live the turns are longer, and the rest is noted as unfinished work.
  function renew_documents(generation, now, ttl, changed)
    local known = redis.call('HMGET', state, 'd', 'y', 's')
    local needed = math.floor(now / 1000) + ttl
    if changed then
      redis.call('HDEL', state, 'd')
      known[1], known[2] = false, false
    end
    if known[1] and tonumber(known[1]) >= needed then return end
    local rank, ends, revision = 0, nil, nil
    if known[2] then rank, ends, revision = string.match(known[2], '^(%d+) (%d+) ?(%d*)$') end
    if not ends or tonumber(ends) < needed then rank, ends, revision = 0, document_ends(now, ttl), '' end
    rank, revision = tonumber(rank), tonumber(revision) or 0
    local archive = revision > 0 and archive_index.with(state, revision) or nil
    local prefix, left = documents_of(generation), known[1] and RENEWED or FIRST_RENEWED
    repeat
      local key = revision == 0 and messages or archive and archive_of(state, archive)
      local members = key and attempt('ZRANGE', key, rank, rank + RENEWED - 1) or {}
      for _, member in ipairs(members) do
        if #member >= SHORTEST then attempt('PEXPIREAT', prefix .. sequence_of(member), ends) end
      end
      if revision == 0 and rank == 0 and known[3] then
        use_places()
        local sequence = sequence_at(state, known[3])
        if sequence then attempt('PEXPIREAT', prefix .. '-' .. sequence, ends) end
      end
      rank, left = rank + RENEWED, left - #members - 1
      if #members < RENEWED then
        archive = archive_index.with(state, revision, true)
        if not archive then
          redis.call('HSET', state, 'd', ends)
          redis.call('HDEL', state, 'y')
          return
        end
        rank, revision = 0, archive[OF.revision]
      end
    until left <= 0
    redis.call('HSET', state, 'y', rank .. ' ' .. ends .. (revision == 0 and '' or format(' %.0f', revision)))
    if not known[1] then note_unfinished('+' .. ARG.name, prefix .. ' ' .. redis.call('HGET', state, 'q')) end -- documents.lua
  end

  -- Lets archives live half as long again as their conversation, so that not every change must renew them.
  function renew_archives(now, ttl)
    local ends = document_ends(now, ttl)
    for _, archive in ipairs(archive_index.keys(state)) do attempt('PEXPIREAT', archive, ends) end
    redis.call('HSET', state, 'a', ends)
  end
end
