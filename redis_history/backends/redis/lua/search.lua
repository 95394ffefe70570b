-- Searches one conversation.
--
-- KEYS  1 state (hash)
-- ARGV  1 '1' if the commands ask whether messages are archived   then for each command: how many arguments, which of them
--       is the conversation (from 1), whose value is put in here, and these; the first one counts the documents of the
--       conversation
--
-- Returns {generation of the documents or '', messages (archived ones too, without replies that are being written), documents, then for each further command how many
-- it found, and sequence (of a summary with a minus) and score of the best of them, with blanks between}. If the numbers
-- differ some messages have no document (yet), and nothing further is asked; documents is -1 if mark.lua must be called
-- first, -2 while the slot moves to another node of a cluster, when no index can be used. The error of a command is returned as it is.
local known = redis.call('HMGET', KEYS[1], 'i', 'n', 'm', 'j', '~')
local generation, count = known[1] or '', (known[2] or 0) + (known[3] or 0) - #(known[5] or '') / 33
if generation == '' then return {generation, count, 0} end
if ARGV[1] == '1' and known[4] then return {generation, count, -1} end
local answer, at = {generation, count, 0}, 2
local prefix = 'rhd2' .. string.sub(KEYS[1], 4, -2) .. generation .. ':'

-- Of keys and scores as text: a fifth of the time that the caller would need to read them one by one.
local function short(reply)
  local items, size = {}, 0
  for i = 2, #reply, 2 do
    if string.sub(reply[i], 1, #prefix) == prefix then -- asked for by generation; that it is of this conversation is seen here
      local score = reply[i + 1]
      if type(score) == 'table' then score = score[2] end -- of a near vector: the name of its distance and the distance
      items[size + 1], items[size + 2] = string.sub(reply[i], #prefix + 1), score
      size = size + 2
    end
  end
  return table.concat(items, ' ')
end

while at <= #ARGV do
  local command = {}
  for i = at + 2, at + 1 + ARGV[at] do
    command[#command + 1] = ARGV[i]
  end
  command[tonumber(ARGV[at + 1])] = generation
  at = at + ARGV[at] + 2
  local reply = redis.pcall(unpack(command))
  if reply.err then
    if string.find(reply.err, 'non local key', 1, true) then return {generation, count, -2} end
    return reply
  end
  if at == ARGV[2] + 4 then
    answer[3] = reply[1]
    if reply[1] ~= count then break end
  else
    answer[#answer + 1] = reply[1]
    answer[#answer + 1] = short(reply)
  end
end
return answer
