-- Lists the archives of a conversation, in pages. After _member.lua and _archive.lua.
--
-- KEYS  state: hash
-- ARGV  known_up_to: the revision up to which archives are known, '0' for all
--       blocks: most blocks of the index to read
--
-- Returns {time to live in milliseconds or '', the highest sequence, usage by day (see _usage.lua) or 0, 1 if there are more archives, 1 if erased summaries must be
-- removed first (scrub.lua), then for each archive, oldest first: its revision, its token, the id of the summary that
-- replaced its messages ('' if that was removed), the id of the summary that this replaced ('' if it never existed or
-- was removed), and the time and the sequence of its own summary}; {} for a missing conversation.
use_archives()
local state, known_up_to, most = KEY.state, tonumber(ARG.known_up_to), tonumber(ARG.blocks)
local known = redis.call('HMGET', state, 'e', 'l', 'q', '%')
if not known[1] then return {} end
local blocks, read = archive_index.blocks(state), 0
local answer = {known[2] or '', known[3] or '0', known[4] or 0, 0, archive_index.erased and 1 or 0}
for i, block in ipairs(blocks) do
  if not blocks[i + 1] or blocks[i + 1].revision > known_up_to then
    if read == most then
      answer[4] = 1
      break
    end
    read = read + 1
    local records, names = archive_index.records(state, block), {}
    for j, record in ipairs(records) do names[j] = '^' .. record[OF.summary] end
    local present = redis.call('HMGET', state, unpack(names)) -- at most 50
    for j, record in ipairs(records) do
      if record[OF.revision] > known_up_to then
        answer[#answer + 1] = record[OF.revision]
        answer[#answer + 1] = record[OF.token]
        answer[#answer + 1] = tonumber(present[j]) == record[OF.revision] and record[OF.summary] or ''
        answer[#answer + 1] = record[OF.former] or ''
        answer[#answer + 1] = string.format('%.0f', record[OF.last])
        answer[#answer + 1] = record[OF.sequence]
      end
    end
  end
end
return answer
