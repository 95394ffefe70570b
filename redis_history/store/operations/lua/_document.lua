-- The search documents of a conversation: one hash for each message, where the index of the namespace finds it.
-- After _change.lua. Code that most appends do not need is in _documents.lua.
--
-- A document is rhd2:{<namespace>:<bucket>}:<conversation>:<generation>:<sequence>, with a minus before the sequence if it is that
-- of a summary; of archived messages it has a field 'z'. The generation, a token, is in the state as 'i' and in each document
-- as 'c'. When one call removes all messages, a new generation begins with the next document. The documents of the
-- former generation are no longer found, and are removed in the same call if they are few, otherwise in small steps
-- (purge.lua). With a time to live, documents have a separate one, half as long again, so that not every change must
-- renew all of them: 'd' is until when (milliseconds) all are there, 'y' the rank up to which a renewal has come and
-- what it renews to.
local attempt, documents_of, document_ends, document

-- Makes these functions; see use_archives.
local function use_document()
  -- A command on a key that may not be here: while a slot moves between nodes, new keys and keys that have moved cannot be
  -- written. Then it returns nothing, and a later search sees by the number of documents that some are missing.
  function attempt(...)
    local reply = redis.pcall(...)
    if type(reply) ~= 'table' or not reply.err then return reply end
    if not string.find(reply.err, 'non local key', 1, true) then error(reply.err, 0) end
  end

  function documents_of(generation)
    return 'rhd2' .. string.sub(state, 4, -2) .. generation .. ':'
  end

  function document_ends(now, ttl)
    return format('%.0f', math.floor(now / 1000) + math.floor(ttl * 1.5))
  end

  -- Writes the document of one message: `from` and `to` are where its fields and values are in ARGV. All it had before go.
  -- `anew`: this sequence does not have a document yet; `archived`: its message is in an archive.
  function document(prefix, generation, sequence, timestamp, from, to, ends, anew, archived)
    local key = prefix .. sequence
    -- Fields that not every document has. The key stays: a node whose slot is leaving cannot create it again.
    if not anew then attempt('HDEL', key, 'p', 's', 'v', 'w', 'z') end
    if archived then
      attempt('HSET', key, 'c', generation, 'm', timestamp, 'z', '1', unpack(ARGV, from, to)) -- at most 20
    else
      attempt('HSET', key, 'c', generation, 'm', timestamp, unpack(ARGV, from, to)) -- at most 20
    end
    if ends then attempt('PEXPIREAT', key, ends) end
  end
end
