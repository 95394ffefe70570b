-- Drops a draft, so that it cannot be published any more. Its sets of messages are removed by the caller, because they may be
-- many: between 'drop' and 'end', or after 'refuse'. Until then the draft's state says how many there are, so that another one
-- can do it if the caller is killed.
--
-- KEYS  state: of the draft, a hash
-- ARGV  how: 'drop': its writer gives it up; 'end': its sets are gone; 'refuse': others drop it, and later pages of its writer are
--         refused for a while, even a first page
--       lasts: milliseconds until the state expires
--
-- Returns the number of its archives; nil if the draft was published or has expired.
local REFUSED, GIVEN_UP = '-1', '-2' -- in place of the page
local draft, how, lasts = KEY.state, ARG.how, ARG.lasts
local known = redis.call('HMGET', draft, 'page', 'archives')
local page, archives = known[1], known[2]
if how == 'end' then
  if page == GIVEN_UP then redis.call('UNLINK', draft) end
elseif how == 'refuse' or page and page ~= REFUSED then
  redis.call('UNLINK', draft)
  redis.call('HSET', draft, 'page', how == 'refuse' and REFUSED or GIVEN_UP, 'archives', archives or 0)
  redis.call('PEXPIRE', draft, lasts)
end
return archives and tonumber(archives)
