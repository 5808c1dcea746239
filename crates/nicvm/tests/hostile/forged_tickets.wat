;; expect: survives
;; Ends commands, and writes into memory, that it was never given.
(module
  (import "nic" "send_control" (func $send_control (param i32 i32 i32) (result i32)))
  (import "nic" "send_data" (func $send_data (param i32 i32 i32 i32) (result i32)))
  (import "nic" "set_timeout" (func $set_timeout (param i32 i32 i64) (result i32)))
  (import "nic" "cancel_timeout" (func $cancel_timeout (param i32) (result i32)))
  (import "nic" "complete" (func $complete (param i32 i32 i64 i64 i64) (result i32)))
  (import "nic" "write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (global (export "nicvm") i32 (i32.const 1))
  (global (export "mailbox") i32 (i32.const 0))
  (global $got (mut i32) (i32.const 0))
  (func (export "on_command") (param $ticket i32) (param i32 i32 i32 i32 i32)
    (local $forged i32)
    (loop $again
      (if (i32.ne (local.get $forged) (local.get $ticket)) (then
        (global.set $got (i32.add (global.get $got)
          (i32.add (i32.const 2) (i32.add
            (call $complete (local.get $forged) (i32.const 0) (i64.const 0) (i64.const 0) (i64.const 0))
            (call $write (local.get $forged) (i32.const 0) (i32.const 0) (i32.const 1))))))))
      (local.set $forged (i32.add (local.get $forged) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $forged) (i32.const 8))))
    (drop (call $complete (local.get $ticket) (i32.const 0) (i64.extend_i32_u (global.get $got)) (i64.const 0) (i64.const 0))))
)
