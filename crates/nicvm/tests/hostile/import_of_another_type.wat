;; expect: refused
;; Wants a call with other arguments than it has.
(module
  (import "nic" "send_control" (func $send_control (param i64) (result i64)))
  (import "nic" "send_data" (func $send_data (param i32 i32 i32 i32) (result i32)))
  (import "nic" "set_timeout" (func $set_timeout (param i32 i32 i64) (result i32)))
  (import "nic" "cancel_timeout" (func $cancel_timeout (param i32) (result i32)))
  (import "nic" "complete" (func $complete (param i32 i32 i64 i64 i64) (result i32)))
  (import "nic" "write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (global (export "nicvm") i32 (i32.const 1))
  (global (export "mailbox") i32 (i32.const 0))
)
