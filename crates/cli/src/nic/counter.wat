;; Adds STEP for each command of opcode 1, notifies the node that the command names, which adds it as well, and
;; completes with the sum. Opcode 2 only reads the sum; 3 fails. The next version receives the sum.
(module
  (import "nic" "complete" (func $complete (param i32 i32 i64 i64 i64) (result i32)))
  (import "nic" "send_control" (func $send_control (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (global (export "nicvm") i32 (i32.const 1))
  (global (export "mailbox") i32 (i32.const 0))
  (global (export "state") i32 (i32.const 1024))
  (global (export "state_bytes") i32 (i32.const 8))
  (func $add (param $what i64)
    (i64.store (i32.const 1024) (i64.add (i64.load (i32.const 1024)) (local.get $what))))
  (func (export "on_command") (param $ticket i32) (param $opcode i32) (param i32) (param $node i32) (param i32 i32)
    (if (i32.eq (local.get $opcode) (i32.const 3)) (then (unreachable)))
    (if (i32.eq (local.get $opcode) (i32.const 1)) (then
      (call $add (i64.const STEP))
      (i64.store (i32.const 2048) (i64.const STEP))
      ;; A node that is down misses the step.
      (drop (call $send_control (local.get $node) (i32.const 2048) (i32.const 8)))))
    (drop (call $complete (local.get $ticket) (i32.const 0) (i64.load (i32.const 1024)) (i64.const 0) (i64.const 0))))
  (func (export "on_control") (param $from i32) (param $length i32)
    (call $add (i64.load (i32.const 0)))))
