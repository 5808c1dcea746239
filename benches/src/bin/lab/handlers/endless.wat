;; A handler that never returns.
(module
  (memory (export "memory") 1)
  (global (export "nicvm") i32 (i32.const 1))
  (global (export "mailbox") i32 (i32.const 0))
  (func (export "on_command") (param i32 i32 i32 i32 i32 i32)
    (loop $again (br $again))))
