-- Decides which share's task is next in the parking lot of a fair limit, see shares.lua.
--
-- Changes are collected and written together, at the end of a poll.
--
-- Uses a parking lot in use, see lot.lua: PARKED, PAYLOADS, SUSPENDED, SHARES, TURNS, WEIGHTS; now, MONTH_US; shares, HELD, CLOCK, SINCE,
-- FROM_PLACE, SOME_HELD, SUM, STORED, IN_CODE, KEPT_MS, MARKS, known of shares.lua; SHARE of task_record.lua; precise of share_weights.lua;
-- weight_in_code of read_code_weight.lua; room(), whether the script may do more; did(work), which notes the work that is done.
-- Gives turns, which is nil where this text is not put in:
--   use(weights)    whether the parking lot has shares. `weights`: those in the code,
--                   "<number> NUL <share> <weight> NUL <share> <weight> NUL", where the number identifies them
--   next(may_come)  the id of the next task, which may be no longer parked; nil: none; false: the script has reached its bound of work.
--                   may_come(id, place) is false for a task that was set aside; nil: any task may be next
--   count(cost)     that task is returned; without a cost: it is no longer parked
--   index(id, place), a task is parked again
--   keep()          writes the changes, at the end
--   stay(look)      a poll is planned at that time; returns the time at which a poll is needed
--!include read_code_weight.lua
local MOST_HELD = 2147483648 -- 2^31
local AT_FIRST, SOME = 3, 20 -- shares that are read at first, and then
local STEP, CHOICE = 0.2, 0.5 -- what a step takes, in tasks that are let out; and what it takes besides to let out one of a share
local MOST_NAMED = 50 -- weights that are looked for
local OFTEN_US, RARE_US = 600000000, 10000000
turns = {use = false, next = false, count = false, index = false, keep = false, stay = false, entry = false, weight = false} -- has room
local in_code, held, clock, marks, first -- `first`: how many members of `turns` are no share
local least, head, bound -- shares by their tags, the least of all, from `head` on; no other one has less than that
local tags, gone, dropped, after -- what has changed

local function keep()
    local changed = {precise(-clock), CLOCK}
    if #gone > 0 then changed = {changed[1], CLOCK, precise(-known[TURNS]), SUM} end
    for share, tag in next, tags do
        changed[#changed + 1] = precise(tag)
        changed[#changed + 1] = share
    end
    call('ZADD', TURNS, unpack(changed))
    if #gone > 0 then call('ZREM', TURNS, unpack(gone)) end
    if #dropped > 0 then call('ZREM', SHARES, unpack(dropped)) end
    tags, gone, dropped, after = {}, {}, {}, {}
end
turns.keep = keep

-- Extends the index's time to live. If polls are frequent, some of them do so.
function turns.stay(look)
    if look - now > RARE_US or now % OFTEN_US < RARE_US then
        call('PEXPIRE', TURNS, KEPT_MS)
        call('PEXPIRE', SHARES, KEPT_MS)
    end
    return min(look, now + MONTH_US)
end

local function read(from, to)
    local got = call('ZRANGE', TURNS, from, to, 'WITHSCORES')
    least, head, bound = {}, 1, math.huge
    for i = 1, #got, 2 do
        local tag = got[i + 1] + 0
        if tag < 0 then
            marks[got[i]], first = -tag, first + 1
        else
            least[#least + 1] = {got[i], tag}
        end
    end
    if #got == 2 * (to - from + 1) then bound = least[#least][2] end
end

local function begins_now(some)
    for _, share in ipairs(some) do call('ZADD', TURNS, 'XX', precise(clock), share) end
    if #some > 0 then least = nil end
end

-- Shares with a changed weight begin at the present virtual time: their earlier turns counted with the earlier weight.
local function heed_changes(since)
    local last = 0
    for at, share in string.gmatch(shares.changes(), '(%d+) (%S*) ') do
        last = tonumber(at)
        if last > since then begins_now({share}) end
    end
    if last > since then call('ZADD', TURNS, int(-last), SINCE) end
    return last
end

-- Resumes some shares that were held back by weights that are no longer in force. Returns whether any were found.
local function let_go()
    local some = call('ZRANGEBYSCORE', TURNS, int(HELD), '(' .. int(held), 'LIMIT', 0, SOME)
    if #some == 0 then some = call('ZRANGEBYSCORE', TURNS, '(' .. int(held), '+inf', 'LIMIT', 0, SOME) end
    begins_now(some)
    did(#some * STEP)
    return #some > 0
end

local function index(id, place)
    local share = match(call('HGET', PAYLOADS, id) or '', SHARE) or ''
    keep()
    if call('ZADD', SHARES, 0, shares.entry(share, place, id)) == 1 and not call('ZSCORE', TURNS, share) then
        shares.add(share, weight_in_code(in_code, share))
    end
    least = nil
end
turns.index = index

-- Sums the weights of all shares that are there. Only some weights other than 1 are read: some of the code's, and some that were
-- changed last.
local function sum_up()
    local sum, changes, named, is_named = call('ZCARD', TURNS), shares.changes() or '', {}, {}
    for _ in next, marks do sum = sum - 1 end
    for share in string.gmatch(in_code .. string.gsub(changes, '%d+ (%S* )', '\0%1'), '%z([^%z ]*) ') do
        if #named < MOST_NAMED and not is_named[share] then named[#named + 1], is_named[share] = share, true end
    end
    for _, share in ipairs(named) do
        if call('ZSCORE', TURNS, share) then sum = sum + shares.weight(share, weight_in_code(in_code, share)) - 1 end
    end
    known[TURNS] = 1 + max(0, sum) + (changes ~= '' and STORED or 0)
end

-- Adds some tasks to the index that are not in it: an older version has parked them, or the limit was not fair.
local function index_some()
    if call('ZCARD', PARKED) <= call('ZCARD', SHARES) then return false end
    local from = -call('ZSCORE', TURNS, FROM_PLACE) - 1
    local found = call('ZRANGEBYSCORE', PARKED, int(from), '+inf', 'WITHSCORES', 'LIMIT', 0, SOME)
    local last = from
    for i = 1, #found, 2 do
        last = tonumber(found[i + 1])
        index(found[i], last)
    end
    did(#found / 2 * STEP)
    last = #found < 2 * SOME and 0 or last > from and last or last + 1
    call('ZADD', TURNS, int(-last - 1), FROM_PLACE)
    return #found > 0
end

function turns.use(weights)
    marks, first = {}, 0
    read(0, MARKS + AT_FIRST - 1)
    clock = marks[CLOCK]
    if not clock then return false end
    in_code, tags, gone, dropped, after = weights, {}, {}, {}, {}
    known[TURNS] = marks[SUM] or 1
    local number, last = match(weights, '^r?(%d+)') or -0.5, shares.changes() and heed_changes(marks[SINCE]) or 0
    if last > marks[SINCE] or number + 1 ~= (marks[IN_CODE] or 0.5) or (known[TURNS] >= STORED) ~= (shares.changes() ~= false) then
        sum_up()
        first = first + call('ZADD', TURNS, precise(-known[TURNS]), SUM, -number - 1, IN_CODE)
    end
    held = HELD + (last + max(0, number)) % MOST_HELD
    if marks[SOME_HELD] and not let_go() and call('ZCOUNT', TURNS, int(HELD), '+inf') == 0 then
        first = first - call('ZREM', TURNS, SOME_HELD)
    end
    index_some()
    return true
end

function turns.next(may_come)
    while room() > 0 do
        if not least or not least[head] then
            keep()
            read(first, first + SOME - 1)
        end
        local share, tag
        if least[head] then share, tag = least[head][1], least[head][2] end
        if not share or tag >= HELD then
            keep()
            if not let_go() and not index_some() then return nil end
        else
            local from = after[share] and '(' .. after[share] or '[' .. share .. '\0'
            local entry = call('ZRANGEBYLEX', SHARES, from, '(' .. share .. '\1', 'LIMIT', 0, 1)[1]
            local weight = entry and shares.weight(share, weight_in_code(in_code, share))
            if not entry then
                clock = max(clock, tag)
                gone[#gone + 1] = share
                known[TURNS] = max(known[TURNS] < STORED and 1 or STORED + 1, known[TURNS] - shares.weight(share, weight_in_code(in_code, share)))
                tags[share] = nil
                head = head + 1
            elseif weight == 0 then
                first = first + call('ZADD', TURNS, int(held), share, -0.5, SOME_HELD)
                tags[share] = nil
                head = head + 1
            else
                local at = #share + 2
                local id = string.sub(entry, at + 17)
                turns.entry, turns.weight = entry, weight
                if not may_come then return id end
                local place = string.sub(entry, at, at + 15)
                if (call('ZSCORE', PARKED, id) or -1) - place == 0 and may_come(id, place) then return id end
                turns.count()
            end
            did(STEP)
        end
    end
    if call('EXISTS', PARKED) + call('EXISTS', SUSPENDED) > 0 then return false end
end

function turns.count(cost)
    dropped[#dropped + 1] = turns.entry
    if not cost then
        after[least[head][1]] = turns.entry
        did(STEP)
        return
    end
    local share, tag = least[head][1], least[head][2]
    head = head + 1
    clock = max(clock, tag)
    did(CHOICE)
    local new = min(clock + cost / turns.weight, HELD - 1)
    tags[share], after[share] = new, turns.entry
    if new < bound then
        local at = #least
        while at >= head and (least[at][2] > new or least[at][2] == new and least[at][1] > share) do at = at - 1 end
        table.insert(least, at + 1, {share, new})
    end
end
