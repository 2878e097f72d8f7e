//! Where the nats-server binary is.

use std::env;
use std::path::{Path, PathBuf};

/// Environment variable that names the nats-server binary.
pub const NATS_SERVER_ENV: &str = "MILLRACE_NATS_SERVER";
const NAME: &str = "nats-server";

/// Finds the nats-server binary: `given` if present, else the value of [`NATS_SERVER_ENV`], else
/// beside this program, in `.venv/bin` of the current folder or one above, or in `PATH`.
#[must_use]
pub fn find_server(given: Option<&Path>) -> Option<PathBuf> {
    if let Some(given) = given {
        return is_program(given).then(|| given.to_owned());
    }
    if let Some(named) = env::var_os(NATS_SERVER_ENV) {
        let named = PathBuf::from(named);
        return is_program(&named).then_some(named);
    }
    beside_us().or_else(|| in_environment(NAME)).or_else(|| in_path(NAME))
}

fn beside_us() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.with_file_name(NAME)).filter(|path| is_program(path))
}

/// Finds a program in `.venv/bin`, here or above.
pub fn in_environment(name: &str) -> Option<PathBuf> {
    let here = env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join(".venv/bin").join(name)).find(|path| is_program(path))
}

/// Finds a program on the `PATH`.
pub fn in_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
