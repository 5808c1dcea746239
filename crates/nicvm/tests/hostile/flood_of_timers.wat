;; expect: survives
;; Sets as many timeouts as it can.
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
  (global $set (mut i32) (i32.const 0))
  (func (export "on_command") (param $ticket i32) (param i32 i32 i32 i32 i32)
    (local $left i32)
    (local.set $left (i32.const 63))
    (loop $again
      (global.set $set (i32.add (global.get $set) (i32.add (i32.const 1)
        (call $set_timeout (i32.mul (global.get $set) (i32.const 3)) (i32.and (local.get $left) (i32.const 1)) (i64.const 1000)))))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))
    (drop (call $complete (local.get $ticket) (i32.const 0) (i64.extend_i32_u (global.get $set)) (i64.const 0) (i64.const 0))))
)
