//! Builds a WebAssembly module of any size, in binary: handlers, and functions that fill it.

/// Approximate bytes of a filling function's body.
const BODY: usize = 96;

fn number(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value & 0x7F) as u8;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

fn section(id: u8, body: &[u8]) -> Vec<u8> {
    [&[id][..], &number(body.len()), body].concat()
}

fn export(name: &str, kind: u8, index: u8) -> Vec<u8> {
    [&number(name.len())[..], name.as_bytes(), &[kind, index]].concat()
}

/// Builds one function: multiplies and XORs its parameter repeatedly, as a hash does.
fn filling(which: usize) -> Vec<u8> {
    let mut body = vec![0, 0x20, 0];
    while body.len() < BODY {
        // (i32.xor (i32.mul .. 0x01000193) ..), as a hash does it.
        body.extend([0x41, 0x93, 0x83, 0x80, 0x08, 0x6C, 0x41, (which % 64) as u8, 0x73]);
    }
    body.push(0x0B);
    [number(body.len()), body].concat()
}

/// Builds a module of exactly `bytes`, at least 512; `salt` makes modules of one size differ.
pub(crate) fn module(bytes: usize, salt: u32) -> Vec<u8> {
    let functions = (bytes - 400) / (BODY + 8);
    let i32s = |count: usize| [vec![count as u8], vec![0x7F; count]].concat();
    // Types: the handler of a command, and the filling functions (i32 -> i32).
    let types = [&[2, 0x60][..], &i32s(6), &[0, 0x60], &i32s(1), &[1, 0x7F]].concat();
    let kinds = [number(functions + 1), vec![0], vec![1; functions]].concat();
    let globals = [&[2][..], &[0x7F, 0, 0x41, 1, 0x0B], &[0x7F, 0, 0x41, 0, 0x0B]].concat();
    let exports = [
        vec![4],
        export("memory", 2, 0),
        export("nicvm", 3, 0),
        export("mailbox", 3, 1),
        export("on_command", 0, 0),
    ]
    .concat();
    let on_command = [number(2), vec![0, 0x0B]].concat();
    let mut code = number(functions + 1);
    code.extend(on_command);
    (0..functions).for_each(|which| code.extend(filling(which)));
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    module.extend(section(1, &types));
    module.extend(section(3, &kinds));
    module.extend(section(5, &[1, 0, 1]));
    module.extend(section(6, &globals));
    module.extend(section(7, &exports));
    module.extend(section(10, &code));
    // A custom section with a one-byte name fills the rest; its head takes four bytes.
    let rest = bytes - module.len() - 5;
    let mut custom = vec![1, b's'];
    custom.extend(salt.to_le_bytes());
    custom.resize(rest + 2, 0);
    let head = [0, (custom.len() & 0x7F) as u8 | 0x80, (custom.len() >> 7) as u8];
    module.extend(head);
    module.extend(custom);
    module
}
