-- Publishes a message to a channel that is named after a key. `command`: 'SPUBLISH' in a cluster, where PUBLISH would reach every
-- node, else 'PUBLISH'. A cluster before Redis 7 has only PUBLISH. An error must not undo a change: subscribers also poll.
--
-- Sharded channels have no patterns, so that of the registry stands for those of all change logs of the bucket; its message is
-- the conversation's name.
local function publish(command, channel, message)
  if command == 'SPUBLISH' and type(redis.pcall(command, channel, message)) == 'number' then
    local tag, name = string.match(channel, '^(.-}:)(.*):l$')
    if tag then redis.pcall(command, tag .. 'c', name) end
  else
    redis.pcall('PUBLISH', channel, message)
  end
end
