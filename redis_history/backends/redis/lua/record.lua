-- Creates a conversation with its record, or changes fields of it, as one change. After _change.lua and
-- _document.lua.
--
-- ARGV  10 payload of the log entry   then pairs of a record field and its value
--
-- Returns the revision, or {'revision', current} | {'missing'} | {'exists', current}; then nothing was written.
local before = told()
if before then
  touch()
  return before
end
local known = redis.call('HMGET', state, 'e', 'r', 'l', 'i', 'a')
local revision = tonumber(known[2] or 0)
local refusal = refused(known[1], revision)
if refusal then return refusal end

local now = clock()
local now_text = format('%.0f', now)
revision = revision + 1
local hset = {'r', revision, 'x', token, 'u', now_text}
for i = 11, #ARGV do
  hset[#hset + 1] = ARGV[i]
end
if not known[1] then
  for _, value in ipairs({'v', 1, 'e', token, 'b', now_text, 'q', 0, 't', 0, 'n', 0, 'c', 0, 'k', 0}) do
    hset[#hset + 1] = value
  end
end
redis.call('HSET', state, unpack(hset))
local more
if not known[1] then
  more = begin()
  if ARGV[6] == '' then redis.call('PERSIST', registry) end
end
announce(revision, now, 'record', ARGV[10], more)
if ARGV[6] ~= '' or known[3] then live(ARGV[6], now, known[3], known[4], known[5]) end
return revision
