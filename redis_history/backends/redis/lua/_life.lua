-- What most appends do without: preconditions, times to live, new conversations. Put after _change.lua.
local RECORD = {'U', 'A', 'T', 'D', 'M'}
local renew_documents, renew_archives -- of _document.lua

-- Lets everything of the conversation end together, `ttl` milliseconds from now; other writers keep to it. `generation`: of its
-- search documents, `archived`: until when its archives live, if there are any.
local function live(ttl, now, before, generation, archived)
  if ttl ~= '' then redis.call('HSET', state, 'l', ttl, 'O', '1') else ttl = before end
  if not ttl or ttl == '' then return end
  local ends = format('%.0f', math.floor(now / 1000) + ttl)
  redis.call('PEXPIREAT', state, ends)
  redis.call('PEXPIREAT', messages, ends)
  redis.call('PEXPIREAT', log, ends)
  -- A list lives as long as the longest of its conversations, and for ever if one of them does.
  for _, list in ipairs({registry, unpack(lists_of(redis.call('HMGET', state, 'U', 'A')))}) do
    local left = redis.call('PTTL', list)
    if left >= 0 and left < tonumber(ttl) or left == -1 and redis.call('ZCARD', list) == 1 then
      redis.call('PEXPIREAT', list, ends)
    end
  end
  if archived and tonumber(archived) < math.floor(now / 1000) + ttl then renew_archives(now, ttl) end
  if generation then renew_documents(generation, now, ttl, ttl ~= before) end
end

-- Why the precondition does not hold, as a reply; nil if it does.
local function refused(epoch, revision)
  if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then return {'revision', revision} end
  if ARGV[3] == 'exists' and not epoch then return {'missing'} end
  if ARGV[3] == 'absent' and epoch then return {'exists', revision} end
  if string.sub(ARGV[3], 1, 6) == 'lease:' and redis.call('HGET', string.sub(state, 1, -2) .. 'w', 'w') ~= string.sub(ARGV[3], 7) then
    return {'lease'}
  end
end

-- A place without tool marks.
local function pack_place(timestamp, mark, sequence, revision)
  return pack('>i7I3', timestamp, mark) .. pack_number(sequence) .. pack_number(revision)
end

-- Makes room for a new life: what a former one left behind must not come back. If its log was still there, the state
-- tells the log's readers that the conversation is another one.
local function begin()
  redis.call('UNLINK', messages)
  if redis.call('UNLINK', log) == 1 then redis.call('HSET', state, 'o', '1') end
end
