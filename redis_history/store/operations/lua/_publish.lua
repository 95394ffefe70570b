-- Publishes a message to a channel that is named after a key. `command`: 'SPUBLISH' in a cluster, where PUBLISH would reach every
-- node, else 'PUBLISH'. A cluster before Redis 7 has only PUBLISH. An error must not undo a change: subscribers also poll.
local function publish(command, channel, message)
  if command == 'SPUBLISH' and type(redis.pcall(command, channel, message)) == 'number' then return true end
  redis.pcall('PUBLISH', channel, message)
end

-- Publishes to the channel of a change log. Sharded channels have no patterns, so that of the registry stands for all logs of
-- the bucket; its message is the conversation's name.
local function publish_log(command, log, message)
  if not publish(command, log, message) then return end
  local tag, name = string.match(log, '^(.-}:)(.*):l$')
  redis.pcall(command, tag .. 'c', name)
end
