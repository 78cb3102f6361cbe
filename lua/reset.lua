-- reset: forget what was taken.
--
-- KEYS   of each limit: its state, its slots, what was touched
-- ARGV   key of each limit's bucket: text
-- Reply  1
-- Writes states and slots: they are gone
--!include prelude.lua
--!include now.lua
--!include touch.lua

for i = 1, #ARGV do
    call('UNLINK', KEYS[3 * i - 2], KEYS[3 * i - 1])
    touch(KEYS[3 * i], ARGV[i])
end
return 1
