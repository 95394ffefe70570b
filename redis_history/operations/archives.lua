-- Reads which archives a conversation has. After _member.lua and _archive.lua.
--
-- KEYS  1 state (hash)
-- Returns {time to live in milliseconds or '', the highest sequence, then for each archive, oldest first: its revision, the id of the summary that
-- replaced its messages, and the id of the summary that this replaced ('': none, or it was removed)}; {} if there is no conversation.
use_archives()
local known = redis.call('HMGET', KEYS[1], 'e', 'l', 's', 'w', 'q')
if not known[1] then return {} end
local archives, summaries = archives_in(known[4]), {}
local function note(summary)
  local revision = summary and summary ~= '' and redis.call('HGET', KEYS[1], '^' .. summary)
  if revision then summaries[revision] = summary end
  return revision
end
note(known[3])
local formers = {}
for i, archive in ipairs(archives) do
  local size = redis.call('HGET', KEYS[1], '#' .. archive[1]) or ''
  formers[i] = string.match(size, '^%d+ %d+ %d+ %x+ (.*)$') or ''
  if not note(formers[i]) then formers[i] = '' end
end
local answer = {known[2] or '', known[5] or '0'}
for i, archive in ipairs(archives) do
  answer[#answer + 1] = archive[1]
  answer[#answer + 1] = summaries[archive[1]] or ''
  answer[#answer + 1] = formers[i]
end
return answer
