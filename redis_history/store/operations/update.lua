-- Replaces the content of a message. After _documents.lua and _archived.lua.
--
-- ARGV  condition: also 'reply:<token>' to end the streaming reply with this token, and ';run:…' behind it; or 'settle:<bytes>' to
--         end a reply of a dead writer at this number of bytes; or 'decide:<revision>.<digest of the call>' for a decision on a
--         request that is open, and whose message has the content of this revision
--       field: of the state, for this message
--       id: of the message
--       head: characters, flags, header byte and tool marks
--       rest: of the body
--       usage: (see _usage.lua) or ''
--       document: the fields and values of its search document, if there is one
--
-- Returns 'revision sequence timestamp' of the message (unchanged if it has this content already),
-- or {'contents'} if a large content is missing, so the caller must write it again;
-- or {'unknown'} (also archived, changed, or not this reply) | {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
use_places()
use_replies()
local known = redis.call('HMGET', state, 'e', 'r', 'c', 'k', 'l', ARG.field, 'i', 'a', 's', 'u', 'g', '~')
local revision, place = tonumber(known[2] or 0), known[6]
local names = contents_in(archives_due(known[5], known[8]), known[12])
contents.use()
contents.declare(state, contents.held(state, ARG.id), names)
local marks, of, counts = string.sub(ARG.head, 6), owners(), ARG.usage ~= ''
local asks = approvals.asks(marks)
if asks and not approvals.open then
  for _, list in ipairs(approvals.keys(of)) do names[#names + 1] = list end
end
if place then note_archives(names, place) end
if counts then
-- include _usage
  usage.keys(of, names)
end
local ask = undeclared_keys(lists_and(of, names)) or known[7] and moving(known[7])
if ask then return ask end
local seen, reply = decided(known[10], known[11])
if reply then return reply end
local id, timestamp, sequence, changed, whose, old, archived_one, erased = ARG.id
if place then
  timestamp, sequence, changed, whose = place_of(place)
  local time = format('%.0f', timestamp)
  old = locate_live(messages, time, sequence, id)
  if not old then
    local _
    archived_one, _, _, erased = find_archived(state, time, sequence, id)
  end
end
if place and (old or archived_one) and is_same(old or archived_one, ARG.head, ARG.rest) then
  if ARG.expected_revision == '' or tonumber(ARG.expected_revision) == revision or tonumber(ARG.expected_revision) + 1 == changed then
    return unchanged(seen, true, changed .. ' ' .. sequence .. ' ' .. format('%.0f', timestamp))
  end
end
local refusal = refused(known[1], revision)
if refusal then return unchanged(seen, known[1], refusal) end
if not place then return unchanged(seen, known[1], {'unknown'}) end

if archived_one or erased then return unchanged(seen, true, {'unknown'}) end

local now, live_before, settled = clock(), old and is_live(old), nil
local asked, which = string.match(ARG.condition, '^(%a+):([^;]*)')
if asked == 'decide' then
  local revision_of, call = string.match(which, '^(%d+)%.(%x+)$')
  -- No later copy of this call can decide, either: a message does not get an earlier revision.
  if tonumber(revision_of) ~= changed or not approvals.is_open(ARG.field, call) then return {'unknown'} end
end
if asked == 'reply' or asked == 'settle' then
  local reply = live_before and reply_at(known[12], sequence)
  local ends
  if asked == 'reply' then
    -- The writer also ends a reply that a reader took for dead, unless the message was changed since then.
    ends = reply and reply[1] == which or redis.call('HGET', state, '$' .. which) == tostring(changed)
  else
    ends = live_before and (not reply or
           reply[4] <= math.floor(now / 1000) and redis.call('STRLEN', content_of_reply(state, reply[1])) == tonumber(which))
    if ends and reply then settled = reply[1] end
    for i, one in ipairs(replies_in(known[12])) do
      if one[2] == sequence and one[4] > now / 1000 + LEASE then -- a float; the clock was set back
        local record = reply_record(one[1], sequence, timestamp, now)
        redis.call('HSET', state, '~', string.sub(known[12], 1, 33 * i - 33) .. record .. string.sub(known[12], 33 * i + 1))
      end
    end
  end
  if not ends then return unchanged(seen, true, {'unknown'}) end
end
local large = math.floor(byte(ARG.head, 4) / 8) % 2 == 1 and contents.of(id, ARG.rest) or {}
if contents.lacks(state, large) then return {'contents'} end
local timestamp_text = format('%.0f', timestamp)
local c = old and characters_of(old) or 0
local new_c = struct.unpack('>I3', ARG.head)
local member = member_of(sequence, timestamp, ARG.head, ARG.rest)
revision = revision + 1
local newest = head_of_entry(live_before and KIND.REPLY_ENDED or KIND.UPDATED, now)
write_log(newest, {id, timestamp, sequence})
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'c', known[3] - c + new_c,
           'k', known[4] - math.ceil(c / 4) + math.ceil(new_c / 4), 'h', revision, ARG.field, pack_place(timestamp, whose, sequence, revision) .. marks)
note_places(seen, {{ARG.field, place}})
drop_copy()
-- In this order, because a key that is empty for a moment cannot be made again while its slot leaves this node.
redis.call('ZADD', messages, timestamp_text, member)
if old and old ~= member then redis.call('ZREM', messages, old) end
if #large > 0 or old and contents.has(old) then contents.set(state, id, large, now, ARG.ttl ~= '' and ARG.ttl or known[5]) end
if live_before then forget_replies(state, {[sequence] = true}) end
if settled then redis.call('HSET', state, '$' .. settled, revision) elseif asked == 'reply' then redis.call('HDEL', state, '$' .. which) end
if counts then usage.count({{usage = ARG.usage, field = ARG.field, time = timestamp}}, of) end
local generation, named = known[7], id == known[9] and -sequence or sequence
if #ARGV >= START.document then
  if not generation then
    generation = token
    redis.call('HSET', state, 'i', generation, 'O', '1')
  end
  local ttl, ends = ARG.ttl ~= '' and ARG.ttl or known[5], nil
  if ttl then ends = document_ends(now, ttl) end
  document(documents_of(generation), generation, named, timestamp, START.document, #ARGV, ends)
elseif generation then -- searches must not find the former content
  attempt('UNLINK', documents_of(generation) .. named)
end
if approvals.open or asks then
  -- Those of a live reply count from its end.
  local _, _, _, _, former = place_of(place)
  approvals.note(ARG.field, marks, timestamp, sequence, not live_before and string.sub(place, former))
end
return close_change(seen, revision .. ' ' .. sequence .. ' ' .. timestamp_text, revision, now, known[5], known[7], known[8])
