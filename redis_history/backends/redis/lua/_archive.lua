-- Where compacted messages stay: for each compaction a sorted set, with members as they were. Put before _change.lua.
--
-- An archive is rh2:{<namespace>:<bucket>}:<conversation>:a:<revision of the compaction>. In the state:
--   w  the archives, oldest first: 'revision first last;' each, with the times of its first and last message
--   s  id of the live summary   m  archived messages that have a search document: all but former summaries
--   a  until when (milliseconds) all archives are there, '0': for ever   h  revision of the newest change but appends
--   j  compactions and expansions whose search documents are still to be marked (mark.lua), oldest first: as in w
--   '^<summary id>'  revision of its compaction
--   '#<revision>'    'messages characters tokens token' of it, then a blank and the id of the summary it absorbed, if any
-- ':<id>' of an archived message stays as it was. A summary has the position of the last message it replaces; so that
-- their search documents differ, that of a summary has the sequence with a minus.
local archive_of, archives_in, forget_archives

-- Makes these functions. To make one costs the server 0.3 microseconds, so an append that needs none makes none.
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

  function forget_archives(state, listed)
    for _, archive in ipairs(archives_in(listed)) do
      redis.call('UNLINK', archive_of(state, archive[1]))
    end
  end
end
