-- Preconditions, times to live and new conversations, which most appends do not need. After _change.lua.
local RECORD = {'U', 'A', 'T', 'D', 'M', 'B', 'C'}
local renew_documents, renew_archives -- of _documents.lua

-- Sets the time to live of all keys of the conversation to `ttl` milliseconds, also for later writers. `generation`: of its
-- search documents; `archived`: when its archives expire, if there are any.
local function live(ttl, now, before, generation, archived)
  if ttl ~= '' then redis.call('HSET', state, 'l', ttl, 'O', '1') else ttl = before end
  if not ttl or ttl == '' then return end
  local ends = format('%.0f', math.floor(now / 1000) + ttl)
  redis.call('PEXPIREAT', state, ends)
  redis.pcall('PEXPIREAT', messages, ends) -- a node that a slot is leaving refuses this if the last message has just left
  redis.call('PEXPIREAT', log, ends)
  local more = redis.call('HMGET', state, '~', '&', '%')
  local listed, contents_end = more[1], more[2]
  if more[3] then redis.call('PEXPIREAT', sub(state, 1, -2) .. 'k', ends) end -- the ledger, see _usage.lua
  if listed then -- the content of a reply, which its writer or a reader will need
    use_replies()
    for _, reply in ipairs(replies_in(listed)) do redis.call('PEXPIREAT', content_of_reply(state, reply[1]), ends) end
  end
  if contents_end and (ttl ~= before or tonumber(contents_end) < math.floor(now / 1000) + ttl) then
    contents.use()
    contents.renew(state, now, ttl)
  end
  -- A list lives as long as the longest-lived of its conversations, and as delayed retries of their calls may arrive
  -- (see look).
  local lasts = math.max(tonumber(ttl), math.floor(2 * LIFETIME / 1000))
  local lists = lists_of(owners())
  lists[#lists + 1] = registry
  for _, list in ipairs(lists) do
    local left = redis.call('PTTL', list)
    if left >= 0 and left < lasts or left == -1 and redis.call('ZCARD', list) == 1 then
      redis.call('PEXPIREAT', list, format('%.0f', math.floor(now / 1000) + lasts))
    end
  end
  if archived and (ttl ~= before or tonumber(archived) < math.floor(now / 1000) + ttl) then renew_archives(now, ttl) end
  if generation then renew_documents(generation, now, ttl, ttl ~= before) end
end

-- The keys of the archives that get a new time to live in this call, if they must be declared: see `live`, which may look a
-- moment later. `before`, `archived`: fields l and a.
local function archives_due(before, archived)
  use_archives()
  local ttl = ARG.ttl ~= '' and ARG.ttl or before
  if not ttl or not archived then return {} end
  if ttl == before and tonumber(archived) > math.floor(clock() / 1000) + ttl + 1000 then return {} end
  return archive_index.keys(state)
end

-- Adds those archives to `names` that may have the message at this place.
local function note_archives(names, place)
  local timestamp, sequence = place_of(place)
  for _, archive in ipairs((archive_index.at(state, timestamp, sequence))) do names[#names + 1] = archive_of(state, archive) end
end

-- Adds to `names`, the keys of archives, those of the contents of the replies `streaming` (field '~'), of a staging copy
-- (copy.lua), of the ledger of usage (_usage.lua), of the lists of open requests for approval, which it reads, and of the
-- large contents that get a new time to live in this call; or of all of these, if `all`. Returns `names`.
local function contents_in(names, streaming, all)
  use_replies()
  for _, reply in ipairs(replies_in(streaming)) do names[#names + 1] = content_of_reply(state, reply[1]) end
  local more = redis.call('HMGET', state, 'X', '%', '&', 'l')
  if more[1] then names[#names + 1] = sub(state, 1, -2) .. 'x' end
  if more[2] then names[#names + 1] = sub(state, 1, -2) .. 'k' end
  local ttl, ends = ARG.ttl ~= '' and ARG.ttl or more[4], more[3]
  if ends and (all or ttl and (ttl ~= more[4] or tonumber(ends) <= math.floor(clock() / 1000) + ttl + 1000)) then
    contents.use()
    contents.declare(state, contents.all(state), names)
  end
  approvals.take()
  for _, list in ipairs(approvals.keys_if_open(owners())) do names[#names + 1] = list end
  return names
end

-- Removes a staging copy, which has the content of messages that are changed or removed.
local function drop_copy()
  if redis.call('HDEL', state, 'X') == 1 then redis.call('UNLINK', sub(state, 1, -2) .. 'x') end
end

-- For scripts that remove a key and make it again: a node that a slot is leaving cannot make a key, although it is declared. For
-- those that remove search documents (`documents` is not nil), which they do not declare, the slot must not be arriving either.
-- The reply that makes the caller wait until the slot has moved; nil if it does not move.
local function moving(documents)
  if not string.find(change.flags, 'c', 1, true) then return nil end
  local none = sub(state, 1, -2) .. 'none' -- if it lacks one key, only the former node refuses; if it lacks two, either
  local reply = documents and redis.pcall('EXISTS', none, none .. '2') or redis.pcall('EXISTS', none)
  local why = type(reply) == 'table' and reply.err or '' -- not where a server refuses every key that is not declared
  if string.find(why, 'non local', 1, true) or string.find(why, 'rehashing', 1, true) or string.find(why, 'TRYAGAIN', 1, true) then return redis.error_reply('TRYAGAIN the slot is moving to another node') end
end

-- Whether this is the fence of an active lease ('R<fence>:<run id>'): see run.lua.
local function has_lease(fence)
  local packed = redis.call('HGET', state, sub(fence, 1, 1))
  if not packed then return false end
  local run = cmsgpack.unpack(packed)
  local held = run[4] == 'active' or run[4] == 'stopping'
  return held and run[6] > math.floor(clock() / 1000) and run[1] .. ':' .. run[2] == sub(fence, 2)
end

-- The reply if the precondition does not hold, else nil.
local function refused(epoch, revision)
  if ARG.expected_revision ~= '' and tonumber(ARG.expected_revision) ~= revision then return {'revision', revision} end
  if ARG.condition == '' then return end
  local fence = string.match(ARG.condition, 'run:(.*)$')
  if fence and not has_lease(fence) then return {'run'} end
  local existence = sub(ARG.condition, 1, 6)
  if existence == 'exists' and not epoch then return {'missing'} end
  if existence == 'absent' and epoch then return {'exists', revision} end
end

-- The value of ':<digest of an id>' without tool marks.
local function pack_place(timestamp, mark, sequence, revision)
  return pack('>i7I3', timestamp, mark) .. pack_number(sequence) .. pack_number(revision)
end

-- Removes the leftovers of a former conversation of this id, and notes its existence in field o.
local function begin(seen)
  redis.call('PERSIST', state) -- a run, for example, or the journal of a former life may be older than the conversation
  redis.call('UNLINK', messages)
  if redis.call('UNLINK', log) == 1 then
    redis.call('HSET', state, 'o', 'log')
  elseif seen.expired then
    redis.call('HSET', state, 'o', pack('>i7I3', seen.expired, 0))
  end
end
