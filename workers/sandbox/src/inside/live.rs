//! The processes of a long-lived sandbox, in order: `keep` holds layers for all sandboxes of one
//! owner; `enter` is a sandbox's outer process and makes its namespaces; `house` is the first
//! process within and builds what is seen; it becomes `tend`, without rights and behind walls, which
//! starts a `supervise` for each command, in a `terminal` if it wants one, answers for `files`, and
//! forwards ports (`forward`). `dial` connects to a port from outside. `pack` writes a layer to a
//! stream and reads it back; `image` reads those that others wrote.

use std::path::Path;
use std::process::Command;

pub(crate) mod keep;
pub(crate) mod enter;
pub(crate) mod house;
pub(crate) mod tend;
pub(crate) mod command;
pub(crate) mod supervise;
pub(crate) mod terminal;
pub(crate) mod tree;
pub(crate) mod files;
pub(crate) mod forward;
pub(crate) mod dial;
pub(crate) mod pack;
pub(crate) mod image;

/// Where layers are, for all stages before the sandbox's own root.
pub(crate) const LAYERS: &str = "/l";
/// This program, from within a sandbox.
pub(crate) const PROGRAM: &str = "/dev/sandbox";
/// Where its loader and libraries are, in sandboxes that do not have the machine's: those of an image
/// may be others, or missing.
pub(crate) const LIBRARIES: &str = "/dev/lib";
/// The loader among them.
pub(crate) const LOADER: &str = "loader";

/// This program, to be started from within a sandbox.
pub(crate) fn program() -> Command {
    let loader = Path::new(LIBRARIES).join(LOADER);
    if !loader.exists() {
        return Command::new(PROGRAM);
    }
    let mut command = Command::new(loader);
    command.args(["--library-path", LIBRARIES, PROGRAM]);
    command
}
/// Where a command runs unless it says otherwise.
pub(crate) const HOME: &str = "/home/user";
