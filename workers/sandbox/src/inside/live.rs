//! The processes of a long-lived sandbox, in order: `keep` holds layers for all sandboxes of one
//! owner; `enter` is a sandbox's outer process and makes its namespaces; `house` is the first
//! process within and builds what is seen; it becomes `tend`, without rights and behind walls, which
//! starts a `supervise` for each command, answers for `files`, and forwards ports (`forward`). `pack`
//! writes a layer to a stream and reads it back.

pub(crate) mod keep;
pub(crate) mod enter;
pub(crate) mod house;
pub(crate) mod tend;
pub(crate) mod command;
pub(crate) mod supervise;
pub(crate) mod tree;
pub(crate) mod files;
pub(crate) mod forward;
pub(crate) mod pack;

/// Where layers are, for all stages before the sandbox's own root.
pub(crate) const LAYERS: &str = "/l";
/// This program, from within a sandbox.
pub(crate) const PROGRAM: &str = "/dev/sandbox";
/// Where a command runs unless it says otherwise.
pub(crate) const HOME: &str = "/home/user";
