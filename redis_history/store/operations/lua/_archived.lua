-- Finds archived messages. After _member.lua, _archive.lua and _locate.lua.

-- The live member of an id with a known position; nil if it is archived or removed.
local function locate_live(messages, timestamp, sequence, id)
  local member = locate(messages, timestamp, sequence)
  if not member then return nil end
  local own = id_of(member)
  if own == nil or own == id then return member end
end

-- The member of an id in the archives, its archive and the block of that. If it is an erased summary, nil, nil, nil, true.
local function find_archived(state, timestamp, sequence, id)
  local archives, blocks = archive_index.at(state, tonumber(timestamp), sequence)
  for i, archive in ipairs(archives) do
    local member = locate_live(archive_of(state, archive), timestamp, sequence, id)
    if member then
      if archive[OF.former] == id and archive_index.is_erased(archive) then return nil, nil, nil, true end
      return member, archive, blocks[i]
    end
  end
end
