-- Archives: each compaction moves the replaced members to a sorted set. After _declared.lua, before _change.lua.
--
-- An archive is rh2:{<namespace>:<bucket>}:<conversation>:a:<revision of the compaction>. In the state:
--   w  the archives, oldest first: 'revision first last;' each, with the times of its first and last message
--   s  id of the live summary   m  archived messages that have a search document: all but former summaries
--   a  when (milliseconds) the first archive expires, '0': never   h  revision of the newest change other than appends
--   j  compactions and expansions whose search documents must be marked (mark.lua), oldest first, as in w
--   '^<summary id>'  revision of its compaction
--   '#<revision>'    'messages characters tokens token' of it, then a blank and the id of the summary it replaced, if any
-- The field ':<id>' of an archived message does not change. A summary has the position of the last message it replaces. To
-- tell their search documents apart, that of a summary has a minus before the sequence.
local archive_of, archives_in, forget_archives, undeclared_archives

-- Creates these functions. Each takes 0.3 microseconds, so only scripts that need them do.
local function use_archives()
  function archive_of(state, revision)
    return string.sub(state, 1, -2) .. 'a:' .. revision
  end

  -- The archives as {revision, first, last}.
  function archives_in(listed)
    local found = {}
    for revision, first, last in string.gmatch(listed or '', '(%d+) (%-?%d+) (%-?%d+);') do
      found[#found + 1] = {revision, tonumber(first), tonumber(last)}
    end
    return found
  end

  -- For scripts that do not change a conversation: the reply that asks for these archives, {revision, ...} of each.
  function undeclared_archives(state, archives, cluster)
    local names = {}
    for i, archive in ipairs(archives) do names[i] = archive_of(state, archive[1]) end
    return undeclared_keys(names, cluster)
  end

  function forget_archives(state, listed)
    for _, archive in ipairs(archives_in(listed)) do
      redis.call('UNLINK', archive_of(state, archive[1]))
    end
  end
end
