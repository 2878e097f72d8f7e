//! With the feature `torch`: lets the program find libtorch at run time. The torch crate's build
//! script reports its path.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DEP_MILLRACE_TORCH_LIBTORCH");
    if let Ok(lib) = std::env::var("DEP_MILLRACE_TORCH_LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
        // Programs of other crates that hold this one need the same.
        println!("cargo:libtorch={lib}");
        // Nothing calls libtorch_cuda by name, so the linker would drop it and with it the CUDA
        // back end.
        if Path::new(&lib).join("libtorch_cuda.so").exists() {
            println!("cargo:rustc-link-arg=-Wl,--no-as-needed");
            println!("cargo:rustc-link-arg=-L{lib}");
            println!("cargo:rustc-link-arg=-ltorch_cuda");
            println!("cargo:rustc-link-arg=-Wl,--as-needed");
        }
    }
}
