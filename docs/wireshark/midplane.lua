-- Wireshark dissector for the frames of Midplane: simulated ones in pcapng files, and those of the
-- udp fabric on the wire.
--
--   wireshark -X lua_script:midplane.lua run.pcapng
--   tshark -X lua_script:midplane.lua -r run.pcapng -Y 'midplane.kind == 1'
--
-- Or put it into the folder of personal plugins (Help, About, Folders).

local midplane = Proto("midplane", "Midplane")

local HEADER = 48
local MAGIC = 0x4D
local VERSION = 1

-- Every table here is compared with the protocol's own types by a test of the crate that has them (tables.rs).
local kinds = {
    [0] = "Data", [1] = "Control", [2] = "Acknowledge", [3] = "Hello", [4] = "Welcome", [5] = "Returned",
    [6] = "Piece", [7] = "Probe", [8] = "Probed",
}
local extensions = {
    [1] = "Messages", [2] = "Coordination", [3] = "VIA", [5] = "Collectives", [6] = "Memory", [7] = "Installer",
    [8] = "Programs", [19] = "Gang", [20] = "Warp", [21] = "Mermera",
}
local CONTROLLED = 0x80
-- Control messages of sender coordination.
local bodies = {
    [0] = "UNI_REQ_LINK", [1] = "BCAST_REQ_LINK", [2] = "GRANT_LINK", [3] = "OWN_LINK_HINT",
    [4] = "ASK_SUPPORT", [5] = "SUPPORT", [6] = "RECOVER_LINK", [7] = "GIVE_UP", [8] = "LEAVE",
    [9] = "NEED_BUFFERS", [10] = "ADD_BUFFERS",
}
-- Data frames and control messages of Virtual Interfaces.
local via_kinds = {
    [0] = "Send", [1] = "Write", [2] = "ReadRequest", [3] = "ReadResponse", [4] = "Acknowledge",
}
local via_flags = { [0x08] = "first", [0x10] = "last", [0x20] = "immediate", [0x40] = "urgent" }
local via_messages = {
    [0] = "Request", [1] = "Accept", [2] = "Refuse", [3] = "Withdraw", [4] = "Peer", [5] = "End",
    [6] = "Gate",
}
-- Frames of channels; without the first two flags a frame is a message.
local gang_flags = {
    [0x01] = "answer", [0x02] = "fence", [0x04] = "refused", [0x08] = "absent", [0x10] = "carries an answer",
}
-- Frames of Warp; without feedback and probe a frame is part of a message.
local warp_flags = {
    [0x01] = "feedback", [0x02] = "probe", [0x04] = "broadcast", [0x08] = "rider", [0x10] = "anew",
}
-- What memories tell each other, and the first byte of each part of it that goes by control message.
local updates = { [0] = "Slow", [1] = "SlowAck", [2] = "Pram", [3] = "Coherent" }
local coherence = {
    [0] = "Request", [1] = "Place", [2] = "Have", [3] = "Committed", [4] = "Ask", [5] = "Known", [6] = "View",
    [7] = "Excluded",
}
local parts = { [0] = "more", [1] = "last" }

local f = {
    version = ProtoField.uint8("midplane.version", "Version"),
    kind = ProtoField.uint8("midplane.kind", "Kind", base.DEC, kinds),
    extension = ProtoField.uint8("midplane.extension", "Extension", base.DEC, extensions),
    source = ProtoField.uint16("midplane.source", "Source node"),
    destination = ProtoField.uint16("midplane.destination", "Destination node"),
    incarnation = ProtoField.uint32("midplane.incarnation", "Incarnation of the source"),
    meant_for = ProtoField.uint32("midplane.meant_for", "Incarnation of the destination"),
    length = ProtoField.uint16("midplane.length", "Payload length"),
    port = ProtoField.uint16("midplane.port", "Port"),
    sequence = ProtoField.uint32("midplane.sequence", "Sequence"),
    acknowledgement = ProtoField.uint32("midplane.acknowledgement", "Acknowledgement"),
    flags = ProtoField.uint8("midplane.flags", "Flags", base.HEX),
    controlled = ProtoField.bool("midplane.controlled", "Under flow control", 8, nil, CONTROLLED),
    hop_limit = ProtoField.uint8("midplane.hop_limit", "Hop limit"),
    word0 = ProtoField.uint64("midplane.word0", "Word 0", base.HEX),
    word1 = ProtoField.uint64("midplane.word1", "Word 1", base.HEX),
    message = ProtoField.uint32("midplane.message", "Message"),
    offset = ProtoField.uint32("midplane.offset", "Offset in the message"),
    total = ProtoField.uint32("midplane.total", "Bytes of the message"),
    tag = ProtoField.uint32("midplane.tag", "Tag"),
    beyond = ProtoField.uint32("midplane.beyond", "Received beyond it", base.HEX),
    delay = ProtoField.uint32("midplane.delay", "Nanoseconds since the highest"),
    number = ProtoField.uint32("midplane.connection", "Connection of the source"),
    echo = ProtoField.uint32("midplane.echo", "Connection of the destination"),
    link = ProtoField.uint16("midplane.link", "Link"),
    clock = ProtoField.uint64("midplane.clock", "Clock of the sender, ns"),
    body = ProtoField.uint32("midplane.body", "About the link", base.DEC, bodies),
    epoch = ProtoField.uint64("midplane.epoch", "Epoch"),
    via_kind = ProtoField.uint8("midplane.via.kind", "Kind", base.DEC, via_kinds, 0x07),
    via_message = ProtoField.uint32("midplane.via.message", "About a connection", base.DEC, via_messages),
    connection = ProtoField.uint16("midplane.via.connection", "Connection of the destination"),
    slot = ProtoField.uint16("midplane.via.slot", "Slot of the region"),
    generation = ProtoField.uint32("midplane.via.generation", "Generation of the region, or bytes of a send"),
    value = ProtoField.uint32("midplane.via.value", "Immediate data, or bytes of a read"),
    job = ProtoField.uint32("midplane.gang.job", "Job"),
    job_epoch = ProtoField.uint32("midplane.gang.epoch", "Epoch of the job"),
    round = ProtoField.uint16("midplane.gang.round", "Round"),
    from_rank = ProtoField.uint16("midplane.gang.from", "Sending rank"),
    to_rank = ProtoField.uint16("midplane.gang.to", "Receiving rank"),
    answered = ProtoField.uint16("midplane.gang.answered", "Round that is answered"),
    flag_names = ProtoField.string("midplane.flag_names", "Names of the flags"),
    stamp = ProtoField.uint32("midplane.warp.sent", "Sent, in ticks"),
    feedback = ProtoField.bytes("midplane.warp.feedback", "Feedback"),
    update = ProtoField.uint32("midplane.mermera.update", "Update", base.DEC, updates),
    coherence = ProtoField.uint32("midplane.mermera.coherence", "Of the order", base.DEC, coherence),
    part = ProtoField.uint8("midplane.mermera.part", "Part", base.DEC, parts),
    location = ProtoField.uint32("midplane.mermera.location", "Location"),
    payload = ProtoField.bytes("midplane.payload", "Payload"),
}
midplane.fields = f
local wrong = ProtoExpert.new(
    "midplane.malformed", "Not what the header says", expert.group.MALFORMED, expert.severity.ERROR)
midplane.experts = { wrong }

-- The names of the flags that are set, from the lowest on.
local function names(flags, value)
    local set = {}
    for bit = 0, 6 do
        local mask = 2 ^ bit
        if flags[mask] and math.floor(value / mask) % 2 == 1 then set[#set + 1] = flags[mask] end
    end
    return table.concat(set, ", ")
end

-- A control message of sender coordination: fixed-width and little-endian, the kind as 32 bits.
local function link_message(buffer, tree)
    if buffer:len() < 14 then return nil end
    tree:add_le(f.link, buffer(0, 2))
    tree:add_le(f.clock, buffer(2, 8))
    tree:add_le(f.body, buffer(10, 4))
    local body = buffer(10, 4):le_uint()
    -- All but those about buffers begin with the epoch.
    if body <= 8 and buffer:len() >= 22 then tree:add_le(f.epoch, buffer(14, 8)) end
    return bodies[body]
end

-- A control message about a connection: the kind as 32 bits.
local function via_message(buffer, tree)
    if buffer:len() < 4 then return nil end
    tree:add_le(f.via_message, buffer(0, 4))
    return via_messages[buffer(0, 4):le_uint()]
end

-- What one memory tells another: the kind as 32 bits; of the coherent order a second one.
local function update(buffer, tree)
    if buffer:len() < 4 then return nil end
    tree:add_le(f.update, buffer(0, 4))
    local kind = buffer(0, 4):le_uint()
    if buffer:len() < 8 then return updates[kind] end
    if kind == 3 then
        tree:add_le(f.coherence, buffer(4, 4))
        return "Coherent " .. (coherence[buffer(4, 4):le_uint()] or "?")
    end
    tree:add_le(f.location, buffer(4, 4))
    return string.format("%s %u", updates[kind] or "?", buffer(4, 4):le_uint())
end

-- A part of an update. Only the first part has the update's kind, and none says whether it is the first: one that does not
-- begin like an update that must arrive is a later one.
local function update_part(buffer, tree)
    if buffer:len() < 1 then return nil end
    tree:add(f.part, buffer(0, 1))
    local told = "part: " .. (parts[buffer(0, 1):uint()] or "?")
    if buffer:len() < 9 then return told end
    local kind = buffer(1, 4):le_uint()
    if kind ~= 2 and kind ~= 3 then return told end
    return (update(buffer(1):tvb(), tree) or "?") .. ", " .. told
end

-- Updates of a frame: the length of each as 16 bits, then the update.
local function all_updates(buffer, tree)
    local told, at = {}, 0
    while at + 2 <= buffer:len() do
        local length = buffer(at, 2):le_uint()
        if length == 0 or at + 2 + length > buffer:len() then break end
        local one = tree:add(midplane, buffer(at, 2 + length), "Update")
        told[#told + 1] = update(buffer(at + 2, length):tvb(), one) or "?"
        at = at + 2 + length
    end
    return table.concat(told, ", ")
end

local function message_words(buffer, tree)
    tree:add_le(f.message, buffer(32, 4))
    tree:add_le(f.offset, buffer(36, 4))
    tree:add_le(f.total, buffer(40, 4))
    tree:add_le(f.tag, buffer(44, 4))
    return string.format("message %u, %u+%u of %u", buffer(32, 4):le_uint(), buffer(36, 4):le_uint(),
        buffer(16, 2):le_uint(), buffer(40, 4):le_uint())
end

local function via_words(buffer, tree)
    local flags = buffer(28, 1):uint()
    tree:add(f.via_kind, buffer(28, 1))
    tree:add(f.flag_names, buffer(28, 1), names(via_flags, flags))
    tree:add_le(f.connection, buffer(32, 2))
    tree:add_le(f.slot, buffer(34, 2))
    tree:add_le(f.generation, buffer(36, 4))
    tree:add_le(f.offset, buffer(40, 4))
    tree:add_le(f.value, buffer(44, 4))
    return string.format("VIA %s %u, ack %u, interface %u", via_kinds[flags % 8] or "?", buffer(20, 4):le_uint(),
        buffer(24, 4):le_uint(), buffer(18, 2):le_uint())
end

local function gang_words(buffer, tree)
    local flags = buffer(28, 1):uint()
    tree:add(f.flag_names, buffer(28, 1), names(gang_flags, flags))
    tree:add_le(f.job, buffer(32, 4))
    tree:add_le(f.job_epoch, buffer(36, 4))
    tree:add_le(f.round, buffer(40, 2))
    tree:add_le(f.from_rank, buffer(42, 2))
    tree:add_le(f.to_rank, buffer(44, 2))
    tree:add_le(f.answered, buffer(46, 2))
    local kind = flags % 2 == 1 and "answer" or flags % 4 == 2 and "fence" or "message"
    return string.format("Gang %s %u, job %u, rank %u > %u", kind, buffer(20, 4):le_uint(), buffer(32, 4):le_uint(),
        buffer(42, 2):le_uint(), buffer(44, 2):le_uint())
end

local function warp_words(buffer, tree)
    local flags = buffer(28, 1):uint()
    local set = names(warp_flags, flags)
    tree:add(f.flag_names, buffer(28, 1), set)
    if flags % 2 == 1 then
        if buffer:len() > HEADER then tree:add(f.feedback, buffer(HEADER)) end
        return "Warp " .. set
    end
    tree:add_le(f.stamp, buffer(24, 4))
    local told = string.format("Warp %s stamp %u", set, buffer(20, 4):le_uint())
    if flags % 4 >= 2 then return told end
    return told .. ", " .. message_words(buffer, tree)
end

local function other_words(buffer, tree)
    tree:add_le(f.word0, buffer(32, 8))
    tree:add_le(f.word1, buffer(40, 8))
    local extension = buffer(3, 1):uint()
    return extensions[extension] or "extension " .. extension
end

-- What a data frame's two words and free fields say, by extension.
local data_words = {
    [1] = message_words, [2] = message_words, [3] = via_words, [19] = gang_words, [20] = warp_words,
}
-- What is in a data frame, and in a control message, by extension.
local contents = { [21] = all_updates }
local messages = { [2] = link_message, [3] = via_message, [21] = update_part }

local function control_words(buffer, tree)
    tree:add_le(f.beyond, buffer(32, 4))
    tree:add_le(f.delay, buffer(36, 4))
    tree:add_le(f.number, buffer(40, 4))
    tree:add_le(f.echo, buffer(44, 4))
    return string.format("seq %u, ack %u", buffer(20, 4):le_uint(), buffer(24, 4):le_uint())
end

function midplane.dissector(buffer, pinfo, tree)
    if buffer:len() < HEADER or buffer(0, 1):uint() ~= MAGIC or buffer(1, 1):uint() ~= VERSION then
        return 0
    end
    pinfo.cols.protocol = "Midplane"
    local kind, extension = buffer(2, 1):uint(), buffer(3, 1):uint()
    local source, destination = buffer(4, 2):le_uint(), buffer(6, 2):le_uint()
    local top = tree:add(midplane, buffer(0, HEADER), "Midplane")
    top:add(f.version, buffer(1, 1))
    top:add(f.kind, buffer(2, 1))
    top:add(f.extension, buffer(3, 1))
    top:add_le(f.source, buffer(4, 2))
    top:add_le(f.destination, buffer(6, 2))
    top:add_le(f.incarnation, buffer(8, 4))
    top:add_le(f.meant_for, buffer(12, 4))
    top:add_le(f.length, buffer(16, 2))
    top:add_le(f.port, buffer(18, 2))
    top:add_le(f.sequence, buffer(20, 4))
    top:add_le(f.acknowledgement, buffer(24, 4))
    top:add(f.flags, buffer(28, 1)):add(f.controlled, buffer(28, 1))
    top:add(f.hop_limit, buffer(29, 1))
    local told
    if kind == 0 then
        told = (data_words[extension] or other_words)(buffer, top)
    elseif kind == 5 then
        told = other_words(buffer, top)
    else
        told = control_words(buffer, top)
    end
    local payload = buffer:len() - HEADER
    if payload ~= buffer(16, 2):le_uint() then top:add_proto_expert_info(wrong) end
    if payload > 0 then
        local bytes = buffer(HEADER)
        top:add(f.payload, bytes)
        local decode = kind == 0 and contents[extension] or kind == 1 and messages[extension]
        if decode then
            local about = tree:add(midplane, bytes, extensions[extension])
            told = (decode(bytes:tvb(), about) or "?") .. ", " .. told
        end
    end
    pinfo.cols.src = "node " .. source
    pinfo.cols.dst = "node " .. destination
    pinfo.cols.info = string.format("%s %u > %u, %s", kinds[kind] or kind, source, destination, told)
    return buffer:len()
end

-- Captures of the simulated fabric; the key is Wireshark's own number, not the link type's.
DissectorTable.get("wtap_encap"):add(wtap.USER0, midplane)

-- The udp fabric, on whatever port: the first two bytes and the length tell.
midplane:register_heuristic("udp", function(buffer, pinfo, tree)
    if buffer:len() < HEADER or buffer(0, 1):uint() ~= MAGIC or buffer(1, 1):uint() ~= VERSION then
        return false
    end
    if buffer(16, 2):le_uint() ~= buffer:len() - HEADER then return false end
    midplane.dissector(buffer, pinfo, tree)
    return true
end)
