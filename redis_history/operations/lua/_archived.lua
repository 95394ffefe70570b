-- Finds archived messages. After _member.lua, _archive.lua and _locate.lua.

-- The live member of an id with a known position; nil if it is archived or removed.
local function locate_live(messages, timestamp, sequence, id)
  local member = locate(messages, timestamp, sequence)
  if not member then return nil end
  local own = id_of(member)
  if own == nil or own == id then return member end
end

-- The member of an id in the archives `listed`, and the revision of its archive.
local function find_archived(state, listed, timestamp, sequence, id)
  local archives, time = archives_in(listed), tonumber(timestamp)
  for i = #archives, 1, -1 do
    local archive = archives[i]
    if archive[2] <= time and time <= archive[3] then
      local member = locate_live(archive_of(state, archive[1]), timestamp, sequence, id)
      if member then return member, archive[1] end
    end
  end
end
