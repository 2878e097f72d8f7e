//! Tests of the crate from outside, in one program: each further one would link the whole system and
//! libtorch again.

mod mcp;
mod openai;
mod process;
mod program;
mod rewards;
mod run_loop;
mod server;
mod shipped_examples;
mod stand_by;
mod text;
