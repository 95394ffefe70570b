-- Put before the scripts that tell messages at one place apart.

-- The id inside a member, which our encoder writes first: after the head a map, the key "id", a text.
local function id_of(member)
  local kind = string.byte(member, 20)
  local at = kind == 0xde and 23 or 21
  if string.sub(member, at, at + 2) ~= '\162id' then return nil end
  local head = string.byte(member, at + 3)
  if head >= 0xa0 and head <= 0xbf then return string.sub(member, at + 4, at + 3 + head - 0xa0) end
  if head == 0xd9 then return string.sub(member, at + 5, at + 4 + string.byte(member, at + 4)) end
  if head == 0xda then
    return string.sub(member, at + 6, at + 5 + struct.unpack('>I2', string.sub(member, at + 4, at + 5)))
  end
end
