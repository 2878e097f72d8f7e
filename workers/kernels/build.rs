//! Compiles the kernels against libtorch's headers.

use std::path::{Path, PathBuf};

/// The C++, and the headers beside it.
const KERNELS: [&str; 3] = ["src/between.cc", "src/rows.cc", "src/packed.cc"];
const HEADERS: [&str; 2] = ["src/kernels.h", "src/lanes.h"];

fn main() {
    for file in KERNELS.iter().chain(&HEADERS).chain(&["build.rs"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    // Clippy links nothing, and has build scripts run once more for itself.
    let clippy =
        std::env::var("RUSTC_WORKSPACE_WRAPPER").is_ok_and(|wrapper| wrapper.ends_with("clippy-driver"));
    if !clippy {
        let lib = std::env::var_os("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is");
        compile(&PathBuf::from(lib));
    }
}

fn compile(lib: &Path) {
    let include = lib.parent().expect("libtorch's folder").join("include");
    let mut build = cxx_build::bridge("src/bridge.rs");
    build.files(KERNELS);
    // As system headers, so that their warnings are not ours.
    for headers in [include.join("torch/csrc/api/include"), include] {
        build.flag("-isystem").flag(headers.to_str().expect("libtorch's path is text"));
    }
    // libtorch's threads are OpenMP's; the wheel brings the library, and there must be one of it.
    let openmp = lib.join("libgomp.so.1").exists();
    if openmp {
        build.flag("-fopenmp");
    }
    // Neither floating-point traps nor errno is looked at. Vectors are passed within one file only.
    for flag in ["-fno-trapping-math", "-fno-math-errno", "-Wno-psabi"] {
        build.flag_if_supported(flag);
    }
    build.std("c++20").opt_level(3).warnings_into_errors(false).debug(false).compile("millrace_kernels");
    if openmp {
        println!("cargo:rustc-link-search=native={}", lib.display());
        println!("cargo:rustc-link-lib=dylib:+verbatim=libgomp.so.1");
    }
}
