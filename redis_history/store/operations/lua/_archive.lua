-- Archives: each compaction moves the replaced members to a sorted set. After _declared.lua, before _change.lua.
--
-- An archive is rh2:{<namespace>:<bucket>}:<conversation>:a:<token of the compaction>:<its revision>. The state has their index,
-- in blocks of at most 50, because a script that reads all of a long life would take milliseconds for each:
--   w             for each block 30 bytes, oldest first: revision of its first archive (6 bytes), number of archives (2); of all
--                 messages in these the times of the first and the last (7 each), the lowest and the highest sequence (4 each)
--   w<revision>   the block that begins with this archive: for each archive what its name has, token (16 bytes) and revision (6),
--                 then for each a MessagePack array, see OF. A removal needs only the names, of which a long life has thousands
--   s  id of the live summary   m  archived messages that have a search document: all but former summaries
--   a  when (milliseconds) the first archive expires, '0': never   h  revision of the newest change other than appends
--   j  compactions and expansions whose search documents must be marked (mark.lua), oldest first: 'revision first last;' each
--   E  former summaries that were erased and must still be removed (scrub.lua): time (7 bytes) and sequence (4) of the first
--      of them, the newest revision of the archives that have them, and the one up to which they were removed (6 each)
--   '^<summary id>'  revision of its compaction
-- The field ':<id>' of an archived message does not change. A summary has the position of the last message it replaces. To
-- tell their search documents apart, that of a summary has a minus before the sequence.
local OF = {
  revision = 1, first = 2, last = 3, low = 4, high = 5, -- of the compaction; times and sequences as above
  messages = 6, characters = 7, tokens = 8, -- of those that are still there
  token = 9, -- of the change
  summary = 10, sequence = 11, -- id and sequence of the summary; its time is `last`; it may have been removed
  former = 12, -- id of the summary before, if there is one; and its position, unless it was pinned and so is not in the archive
  former_time = 13, former_sequence = 14,
}
-- Functions of the index, in a table because a script has at most 200 locals. They read it once.
local archive_index = {}
local archive_of, undeclared_archives

-- Creates these functions. Each takes 0.3 microseconds, so only scripts that need them do.
local function use_archives()
  local BLOCK, MOST, NAMED, NAME = '>I6I2i7i7I4I4', 50, '>c16I6', 22 -- layouts, archives in a block, bytes

  function archive_of(state, record) -- `..` writes numbers below 10^14 as they are
    return string.sub(state, 1, -2) .. 'a:' .. record[OF.token] .. ':' .. record[OF.revision]
  end

  local function name_of(record)
    return struct.pack(NAMED, record[OF.token], record[OF.revision])
  end

  -- The blocks of the index, oldest first.
  function archive_index.blocks(state)
    if archive_index.read then return archive_index.read end
    local known = redis.call('HMGET', state, 'w', 'E')
    archive_index.read = {}
    for at = 1, #(known[1] or ''), 30 do
      local block = {}
      block.revision, block.count, block.first, block.last, block.low, block.high = struct.unpack(BLOCK, known[1], at)
      archive_index.read[#archive_index.read + 1] = block
    end
    if known[2] then archive_index.erased = {struct.unpack('>i7I4I6I6', known[2])} end
    return archive_index.read
  end

  -- The archives of a block, oldest first, as arrays: see OF.
  function archive_index.records(state, block)
    if not block.records then
      local packed = redis.call('HGET', state, 'w' .. block.revision) or ''
      block.records = {cmsgpack.unpack(string.sub(packed, NAME * block.count + 1))}
    end
    return block.records
  end

  -- The names of the keys of all archives, oldest first, in a new table.
  function archive_index.keys(state)
    local before, names, made = string.sub(state, 1, -2) .. 'a:', {}, archive_index.made
    if not made then
      made = {}
      for _, block in ipairs(archive_index.blocks(state)) do
        local packed = redis.call('HGET', state, 'w' .. block.revision) or ''
        for at = 1, math.min(NAME * block.count, #packed), NAME do
          local token, revision = struct.unpack(NAMED, packed, at)
          made[#made + 1] = before .. token .. ':' .. revision
        end
      end
      archive_index.made = made -- a removal needs them twice
    end
    for i = 1, #made do names[i] = made[i] end
    return names
  end

  -- The archives that may have a message of this position, the newest first, and the block of each. Usually there is one, or
  -- two for the position of a former summary. Both time and sequence matter, because messages with times of the past
  -- widen the times of an archive, but not its sequences.
  function archive_index.at(state, time, sequence)
    local found, blocks, all = {}, {}, archive_index.blocks(state)
    for i = #all, 1, -1 do
      local block = all[i]
      if block.first <= time and time <= block.last and block.low <= sequence and sequence <= block.high then
        local records = archive_index.records(state, block)
        for j = #records, 1, -1 do
          local one = records[j]
          if one[OF.first] <= time and time <= one[OF.last] and one[OF.low] <= sequence and sequence <= one[OF.high] then
            found[#found + 1], blocks[#found + 1] = one, block
          end
        end
      end
    end
    return found, blocks
  end

  -- The archive of this revision, or, if `following`, the first after it; its block; and its index there.
  function archive_index.with(state, revision, following)
    local all = archive_index.blocks(state)
    local before, behind = 0, #all + 1 -- the last block that begins with the revision or before, and the next one
    while behind - before > 1 do
      local middle = math.floor((before + behind) / 2)
      if all[middle].revision <= revision then before = middle else behind = middle end
    end
    for i, one in ipairs(before > 0 and archive_index.records(state, all[before]) or {}) do
      if one[OF.revision] == revision and not following or one[OF.revision] > revision and following then
        return one, all[before], i
      end
    end
    if following and all[behind] then return archive_index.records(state, all[behind])[1], all[behind], 1 end
  end

  -- Whether the former summary in this archive was erased. It must not be shown any more.
  function archive_index.is_erased(record)
    local erased, time = archive_index.erased, record[OF.former_time]
    if not erased or not time or record[OF.revision] > erased[3] then return false end
    return time > erased[1] or time == erased[1] and record[OF.former_sequence] >= erased[2]
  end

  -- Writes the archives of a block.
  function archive_index.write_block(state, block)
    local names, packed, field = {}, {}, 'w' .. block.revision
    for i, record in ipairs(block.records) do names[i], packed[i] = name_of(record), cmsgpack.pack(record) end
    if #packed == 0 then
      redis.call('HDEL', state, field)
    else
      redis.call('HSET', state, field, table.concat(names) .. table.concat(packed))
    end
  end

  -- Writes which blocks there are.
  function archive_index.write_blocks(state)
    local packed = {}
    for _, block in ipairs(archive_index.read) do
      if block.count > 0 then
        packed[#packed + 1] = struct.pack(BLOCK, block.revision, block.count, block.first, block.last, block.low, block.high)
      end
    end
    if #packed == 0 then redis.call('HDEL', state, 'w') else redis.call('HSET', state, 'w', table.concat(packed)) end
  end

  -- Adds a newest archive.
  function archive_index.add(state, record)
    local blocks, packed = archive_index.blocks(state), cmsgpack.pack(record)
    local block = blocks[#blocks]
    if not block or block.count >= MOST then
      block = {revision = record[OF.revision], count = 0, first = record[OF.first], last = record[OF.last],
               low = record[OF.low], high = record[OF.high]}
      blocks[#blocks + 1] = block
    end
    local field, names = 'w' .. block.revision, NAME * block.count -- and how many bytes the names take
    local before = names > 0 and redis.call('HGET', state, field) or ''
    redis.call('HSET', state, field, string.sub(before, 1, names) .. name_of(record) .. string.sub(before, names + 1) .. packed)
    block.records, block.count = nil, block.count + 1
    block.first, block.last = math.min(block.first, record[OF.first]), math.max(block.last, record[OF.last])
    block.low, block.high = math.min(block.low, record[OF.low]), math.max(block.high, record[OF.high])
    archive_index.write_blocks(state)
  end

  -- The reply that asks for these archives.
  function undeclared_archives(state, records)
    local names = {}
    for i, record in ipairs(records) do names[i] = archive_of(state, record) end
    return undeclared_keys(names)
  end

  function archive_index.forget(state)
    in_slices('UNLINK', nil, archive_index.keys(state))
  end
end
