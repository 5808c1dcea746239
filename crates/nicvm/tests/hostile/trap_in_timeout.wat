;; expect: quarantined
;; Fails in on_timeout, after it has asked for things.
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
  (func (export "init") (drop (call $set_timeout (i32.const 1) (i32.const 0) (i64.const 1000))))
  (func (export "on_timeout") (param i32)
    (drop (call $send_control (i32.const 2) (i32.const 0) (i32.const 10)))
    (drop (call $set_timeout (i32.const 7) (i32.const 0) (i64.const 1000)))
    (drop (call $send_data (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 64)))
    (unreachable))
)
