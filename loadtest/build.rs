//! Finds libtorch at run time where the workers were built with it: their build script reports its
//! path.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DEP_MILLRACE_WORKERS_LIBTORCH");
    println!("cargo:rustc-check-cfg=cfg(millrace_torch)");
    if let Ok(lib) = std::env::var("DEP_MILLRACE_WORKERS_LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
        println!("cargo:rustc-cfg=millrace_torch");
    }
}
