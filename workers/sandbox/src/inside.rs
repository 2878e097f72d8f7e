//! What happens in the sandbox's own processes, in order: `launch` leaves the machine by
//! namespaces (`signals` gives back what its owner ignores), `root` is all that is seen of it then,
//! `init` is the first process in there, behind `fence` and `filter`, and `child` runs a program.
//! `live` has the processes of a long-lived sandbox.

pub(crate) mod launch;
pub(crate) mod signals;
pub(crate) mod root;
pub(crate) mod init;
pub(crate) mod fence;
pub(crate) mod filter;
pub(crate) mod child;
pub(crate) mod live;
