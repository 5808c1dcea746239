;; expect: survives
;; Sends as many control messages as it can: what it may ask for is bounded.
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
  (global $sent (mut i32) (i32.const 0))
  (func (export "on_command") (param $ticket i32) (param i32 i32 i32 i32 i32)
    (local $left i32)
    (local.set $left (i32.const 40))
    (loop $again
      (global.set $sent (i32.add (global.get $sent) (i32.add (i32.const 1)
        (call $send_control (i32.const 2) (i32.const 0) (i32.const 4)))))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))
    (drop (call $complete (local.get $ticket) (i32.const 0) (i64.extend_i32_u (global.get $sent)) (i64.const 0) (i64.const 0))))
)
