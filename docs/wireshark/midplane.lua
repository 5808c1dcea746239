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
local kinds = { [0] = "Data", [1] = "Control", [2] = "Acknowledge", [3] = "Hello", [4] = "Welcome" }
local extensions = { [1] = "Messages", [2] = "Coordination" }
local CONTROLLED = 0x80
local bodies = {
    [0] = "UNI_REQ_LINK", [1] = "BCAST_REQ_LINK", [2] = "GRANT_LINK", [3] = "OWN_LINK_HINT",
    [4] = "ASK_SUPPORT", [5] = "SUPPORT", [6] = "RECOVER_LINK", [7] = "GIVE_UP",
    [8] = "NEED_BUFFERS", [9] = "ADD_BUFFERS",
}

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
    payload = ProtoField.bytes("midplane.payload", "Payload"),
}
midplane.fields = f
local wrong = ProtoExpert.new(
    "midplane.malformed", "Not what the header says", expert.group.MALFORMED, expert.severity.ERROR)
midplane.experts = { wrong }

-- A control message of sender coordination: fixed-width and little-endian, the kind as 32 bits.
local function link_message(buffer, tree)
    if buffer:len() < 14 then return nil end
    tree:add_le(f.link, buffer(0, 2))
    tree:add_le(f.clock, buffer(2, 8))
    tree:add_le(f.body, buffer(10, 4))
    local body = buffer(10, 4):le_uint()
    if body <= 7 and buffer:len() >= 22 then tree:add_le(f.epoch, buffer(14, 8)) end
    return bodies[body]
end

local function data_words(buffer, tree)
    tree:add_le(f.message, buffer(32, 4))
    tree:add_le(f.offset, buffer(36, 4))
    tree:add_le(f.total, buffer(40, 4))
    tree:add_le(f.tag, buffer(44, 4))
    return string.format("message %u, %u+%u of %u", buffer(32, 4):le_uint(), buffer(36, 4):le_uint(),
        buffer(16, 2):le_uint(), buffer(40, 4):le_uint())
end

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
    if kind == 0 and extensions[extension] then
        told = data_words(buffer, top)
    elseif kind == 0 then
        top:add_le(f.word0, buffer(32, 8))
        top:add_le(f.word1, buffer(40, 8))
        told = "extension " .. extension
    else
        told = control_words(buffer, top)
    end
    local payload = buffer:len() - HEADER
    if payload ~= buffer(16, 2):le_uint() then top:add_proto_expert_info(wrong) end
    if payload > 0 then
        local bytes = buffer(HEADER)
        top:add(f.payload, bytes)
        if kind == 1 and extension == 2 then
            local about = tree:add(midplane, bytes, "Sender coordination")
            told = (link_message(bytes:tvb(), about) or "?") .. ", " .. told
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
