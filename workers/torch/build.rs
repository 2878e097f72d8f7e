//! Finds libtorch again at run time, by rpath to the folder that it was linked from, and compiles
//! the bridge to its collectives against the headers of the same wheel.

use std::path::{Path, PathBuf};

/// C++ of the bridge.
const SOURCES: [&str; 4] = ["store.cc", "group.cc", "nccl.cc", "reducer.cc"];
const HEADERS: [&str; 2] = ["bridge.h", "store.h"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(millrace_nccl)");
    let lib = std::env::var_os("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is");
    let lib = PathBuf::from(lib);
    let root = lib.parent().expect("libtorch's folder");
    // Clippy links nothing, and has build scripts run once more for itself.
    if !is_clippy() {
        bridge(root);
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // Programs of other crates that hold this one need the same.
    println!("cargo:libtorch={}", lib.display());
    // Nothing calls libtorch_cuda by name, so the linker would drop it and with it the CUDA back
    // end.
    if lib.join("libtorch_cuda.so").exists() {
        println!("cargo:rustc-link-arg=-Wl,--no-as-needed");
        println!("cargo:rustc-link-arg=-L{}", lib.display());
        println!("cargo:rustc-link-arg=-ltorch_cuda");
        println!("cargo:rustc-link-arg=-Wl,--as-needed");
    }
}

fn is_clippy() -> bool {
    std::env::var("RUSTC_WORKSPACE_WRAPPER").is_ok_and(|wrapper| wrapper.ends_with("clippy-driver"))
}

fn headers(root: &Path) -> [PathBuf; 2] {
    let include = root.join("include");
    [include.join("torch/csrc/api/include"), include]
}

fn bridge(root: &Path) {
    let folder = Path::new("src/gang/bridge");
    for file in SOURCES.iter().chain(&HEADERS) {
        println!("cargo:rerun-if-changed={}", folder.join(file).display());
    }
    println!("cargo:rerun-if-changed={}", folder.join("stubs").display());
    let mut build = cxx_build::bridge("src/gang/bridge.rs");
    build.files(SOURCES.map(|file| folder.join(file))).include(folder.join("stubs"));
    // As system headers, so that their warnings are not ours.
    for headers in headers(root) {
        build.flag("-isystem").flag(headers.to_str().expect("libtorch's path is text"));
    }
    build.std("c++20").define("USE_C10D_GLOO", None).warnings_into_errors(false);
    if let Some(headers) = nccl_headers(root) {
        for headers in headers {
            build.flag("-isystem").flag(headers.to_str().expect("CUDA's path is text"));
        }
        build.define("USE_C10D_NCCL", None).define("USE_CUDA", None).define("MILLRACE_NCCL", None);
        println!("cargo:rustc-cfg=millrace_nccl");
    }
    // Debug information of libtorch's headers would double the time that this takes.
    build.debug(false).compile("millrace_gang");
}

/// Where NCCL's and CUDA's headers are, if all that they include is there: beside torch in the
/// folder of wheels. `nvidia-cuda-crt` and `nvidia-cuda-cccl` are not among those that torch
/// brings; set-up adds them.
fn nccl_headers(root: &Path) -> Option<[PathBuf; 3]> {
    let wheels = root.parent()?.join("nvidia");
    let (cuda, nccl) = (wheels.join("cu13/include"), wheels.join("nccl/include"));
    let cccl = cuda.join("cccl");
    if cuda.exists() {
        println!("cargo:rerun-if-changed={}", cuda.display());
    }
    let there = nccl.join("nccl.h").exists()
        && cuda.join("crt/host_config.h").exists()
        && cccl.exists()
        && root.join("lib/libtorch_cuda.so").exists();
    there.then_some([nccl, cuda, cccl])
}
