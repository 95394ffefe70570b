-- Replaces the content of a message. After _documents.lua and _archived.lua.
--
-- ARGV  3 also 'reply:<token>' to end the streaming reply with this token, and ';run:…' behind it; or 'settle:<bytes>'
--       to end a reply of a dead writer at this number of bytes
--       10 its field of the state   11 id   12 characters, flags, header byte and tool marks   13 the rest of the body
--       14 its usage (see _usage.lua) or ''   15 on: the fields and values of its search document, if there is one
--
-- Returns 'revision sequence timestamp' of the message (unchanged if it has this content already),
-- or {'unknown'} (also archived, or not this reply) | {'revision', current} | {'missing'} | {'late', …}; then nothing was written.
use_journal()
use_documents()
use_places()
use_replies()
local known = redis.call('HMGET', state, 'e', 'r', 'c', 'k', 'l', ARGV[10], 'i', 'a', 's', 'u', 'g', '~')
local revision, place = tonumber(known[2] or 0), known[6]
local names = contents_in(archives_due(known[5], known[8]), known[12])
if place then note_archives(names, place) end
local of, counts = owners(), ARGV[14] ~= ''
if counts then
-- include _usage
  usage.keys(of, names)
end
local ask = undeclared_keys(lists_and(of, names)) or known[7] and moving(known[7])
if ask then return ask end
local seen, reply = decided(known[10], known[11])
if reply then return reply end
local id, timestamp, sequence, changed, whose, old, archived_one, erased = ARGV[11]
if place then
  timestamp, sequence, changed, whose = place_of(place)
  local time = format('%.0f', timestamp)
  old = locate_live(messages, time, sequence, id)
  if not old then
    local _
    archived_one, _, _, erased = find_archived(state, time, sequence, id)
  end
end
if place and (old or archived_one) and is_same(old or archived_one, ARGV[12], ARGV[13]) then
  if ARGV[2] == '' or tonumber(ARGV[2]) == revision or tonumber(ARGV[2]) + 1 == changed then
    return unchanged(seen, true, changed .. ' ' .. sequence .. ' ' .. format('%.0f', timestamp))
  end
end
local refusal = refused(known[1], revision)
if refusal then return unchanged(seen, known[1], refusal) end
if not place then return unchanged(seen, known[1], {'unknown'}) end

if archived_one or erased then return unchanged(seen, true, {'unknown'}) end

local now, live_before, settled = clock(), old and is_live(old), nil
local asked, which = string.match(ARGV[3], '^(%a+):([^;]*)')
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
local timestamp_text = format('%.0f', timestamp)
local c = old and characters_of(old) or 0
local new_c = struct.unpack('>I3', ARGV[12])
local member = member_of(sequence, timestamp, ARGV[12], ARGV[13])
revision = revision + 1
local newest = head_of_entry(live_before and REPLY_ENDED or UPDATED, now)
write_log(newest, {id, timestamp, sequence})
redis.call('HSET', state, 'r', revision, 'x', newest, 'u', now, 'c', known[3] - c + new_c,
           'k', known[4] - math.ceil(c / 4) + math.ceil(new_c / 4), 'h', revision, ARGV[10], pack_place(timestamp, whose, sequence, revision) .. string.sub(ARGV[12], 6))
note_places(seen, {{ARGV[10], place}})
drop_copy()
-- In this order, because a key that is empty for a moment cannot be made again while its slot leaves this node.
redis.call('ZADD', messages, timestamp_text, member)
if old and old ~= member then redis.call('ZREM', messages, old) end
if live_before then forget_replies(state, {[sequence] = true}) end
if settled then redis.call('HSET', state, '$' .. settled, revision) elseif asked == 'reply' then redis.call('HDEL', state, '$' .. which) end
if counts then usage.count({{usage = ARGV[14], field = ARGV[10], time = timestamp}}, of) end
local generation, named = known[7], id == known[9] and -sequence or sequence
if #ARGV > 14 then
  if not generation then
    generation = token
    redis.call('HSET', state, 'i', generation, 'O', '1')
  end
  local ttl, ends = ARGV[6] ~= '' and ARGV[6] or known[5], nil
  if ttl then ends = document_ends(now, ttl) end
  document(documents_of(generation), generation, named, timestamp, 15, #ARGV, ends)
elseif generation then -- searches must not find the former content
  attempt('UNLINK', documents_of(generation) .. named)
end
return close_change(seen, revision .. ' ' .. sequence .. ' ' .. timestamp_text, revision, now, known[5], known[7], known[8])
