-- Searches one conversation.
--
-- KEYS  state: hash
-- ARGV  by_archived: '1' if the commands filter by archived
--       commands: for each: how many arguments; which of them (from 1) says how many to find ('0': none), 'rest' if the command
--         is needed only after one that did not list all its matches, 'some' if only right after one that has any; and the
--         arguments, of which the seventh is the conversation, replaced here by the generation. The first command counts the
--         conversation's documents
--
-- Returns {generation of the documents or '', messages (live and archived, without streaming replies), documents, then for
-- each further command the number of matches, and sequence (of a summary with a minus) and score of the best, separated by
-- blanks}. If messages and documents differ, some messages lack a document, and no further results follow. Documents
-- is -1 if mark.lua must run first, and -2 while the slot moves to another node of a cluster. An error of a command is returned.
local known = redis.call('HMGET', KEY.state, 'i', 'n', 'm', 'j', '~')
local generation, count = known[1] or '', (known[2] or 0) + (known[3] or 0) - math.floor(#(known[5] or '') / 33)
if generation == '' then return {generation, count, 0} end
if ARG.by_archived == '1' and known[4] then return {generation, count, -1} end
local answer, at = {generation, count, 0}, START.commands
-- Near vectors order the messages that have the words, so as many are needed. Their cost grows with their number.
local LEAST_NEAR, MOST_NEAR = 50, 500
local matches, unlisted, last = 0, false, 1
local prefix = 'rhd2' .. string.sub(KEY.state, 4, -2) .. generation .. ':'

-- Keys and scores as text, which the caller reads in a fifth of the time.
local function short(reply)
  local items, size = {}, 0
  for i = 2, #reply, 2 do
    if string.sub(reply[i], 1, #prefix) == prefix then -- the generation may also belong to another conversation
      local score = reply[i + 1]
      if type(score) == 'table' then score = score[2] end -- for a near vector: the name of the distance and its value
      items[size + 1], items[size + 2] = string.sub(reply[i], #prefix + 1), score
      size = size + 2
    end
  end
  return table.concat(items, ' ')
end

while at <= #ARGV do
  local first, adapted, to = at == START.commands, ARGV[at + 1], at + 1 + ARGV[at]
  local command = {unpack(ARGV, at + 2, to)} -- at most 2,000
  command[7] = generation
  at = to + 1
  local reply = {0}
  local count_at = tonumber(adapted)
  if count_at or adapted == 'rest' and unlisted or adapted == 'some' and last > 0 then
    if count_at and count_at > 0 then
      command[count_at] = math.max(LEAST_NEAR, math.min(matches, MOST_NEAR))
    end
    reply = redis.pcall(unpack(command)) -- at most 2,000
  end
  if reply.err then
    if string.find(reply.err, 'non local key', 1, true) then return {generation, count, -2} end
    return reply
  end
  if first then
    answer[3] = reply[1]
    if reply[1] ~= count then break end
  else
    matches, last = matches + reply[1], reply[1]
    unlisted = unlisted or reply[1] > (#reply - 1) / 2 -- compares a float
    answer[#answer + 1] = reply[1]
    answer[#answer + 1] = short(reply)
  end
end
return answer
