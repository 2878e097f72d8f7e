//! With the `torch` feature: finds libtorch again at run time, by rpath to the folder that it was linked from.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=LIBTORCH_USE_PYTORCH");
    if std::env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    let Some(lib) = libtorch() else {
        println!("cargo:warning=libtorch was not found for the rpath; set LIBTORCH or run `make setup`");
        return;
    };
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // Programs of other crates that hold this one need the same.
    println!("cargo:libtorch={}", lib.display());
    // Nothing calls libtorch_cuda by name, so the linker would drop it and with it the CUDA back end.
    if lib.join("libtorch_cuda.so").exists() {
        println!("cargo:rustc-link-arg=-Wl,--no-as-needed");
        println!("cargo:rustc-link-arg=-L{}", lib.display());
        println!("cargo:rustc-link-arg=-ltorch_cuda");
        println!("cargo:rustc-link-arg=-Wl,--as-needed");
    }
}

/// The folder of libtorch's shared libraries, found as torch-sys finds it.
fn libtorch() -> Option<PathBuf> {
    if let Some(root) = std::env::var_os("LIBTORCH") {
        return Some(PathBuf::from(root).join("lib"));
    }
    let script = "import os, torch; print(os.path.join(os.path.dirname(torch.__file__), 'lib'))";
    let output = Command::new("python3").args(["-c", script]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_dir().then_some(path)
}
