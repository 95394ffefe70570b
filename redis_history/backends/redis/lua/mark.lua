-- Says in search documents whether their messages are archived. It is a help to search alone, which looks where they are.
--
-- KEYS  1 state (hash)   then the documents
-- ARGV  1 life of the documents   2 '1' if they are archived
if redis.call('HGET', KEYS[1], 'i') ~= ARGV[1] then return 0 end
local marked = 0
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    if ARGV[2] == '1' then redis.call('HSET', KEYS[i], 'z', '1') else redis.call('HDEL', KEYS[i], 'z') end
    marked = marked + 1
  end
end
return marked
