//! Compiles the kernels against libtorch's headers.

use std::path::{Path, PathBuf};

/// The C++, and the headers beside it.
const KERNELS: [&str; 15] = [
    "src/between.cc",
    "src/rows.cc",
    "src/packed.cc",
    "src/trace/trace.cc",
    "src/cuda/launch.cc",
    "src/cuda/device.cc",
    "src/cuda/graphs.cc",
    "src/cuda/runtime.cc",
    "src/cuda/emulated.cc",
    "src/training/elementwise.cc",
    "src/training/attention.cc",
    "src/training/gate.cc",
    "src/training/heads.cc",
    "src/training/logits.cc",
    "src/training/adamw.cc",
];
const HEADERS: [&str; 12] = [
    "src/kernels.h",
    "src/lanes.h",
    "src/trace/trace.h",
    "src/cuda/launch.h",
    "src/cuda/graphs.h",
    "src/cuda/runtime.h",
    "src/cuda/arguments.h",
    "src/cuda/rows.cu",
    "src/cuda/attention.cu",
    "src/cuda/draw.cu",
    "src/training/elementwise.h",
    "src/training/training.h",
];
/// Where Rust and C++ meet.
const BRIDGES: [&str; 6] = [
    "src/tensors.rs",
    "src/bridge.rs",
    "src/cuda/bridge.rs",
    "src/cuda/graphs.rs",
    "src/training/bridge.rs",
    "src/trace/bridge.rs",
];

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
    let mut build = cxx_build::bridges(BRIDGES);
    build.files(KERNELS);
    // As system headers, so that their warnings are not ours.
    for headers in [include.join("torch/csrc/api/include"), include] {
        build.flag("-isystem").flag(headers.to_str().expect("libtorch's path is text"));
    }
    if let Some(headers) = cuda_headers(lib) {
        for headers in headers {
            build.flag("-isystem").flag(headers.to_str().expect("CUDA's path is text"));
        }
        build.define("USE_CUDA", None).define("MILLRACE_CUDA", None);
        println!("cargo:rustc-link-search=native={}", lib.display());
        println!("cargo:rustc-link-lib=dylib=torch_cuda");
        println!("cargo:rustc-link-lib=dylib=c10_cuda");
    }
    // libtorch's threads are OpenMP's; the wheel brings the library, and there must be one of it.
    let openmp = lib.join("libgomp.so.1").exists();
    if openmp {
        build.flag("-fopenmp");
    }
    // Neither floating-point traps nor errno is looked at. Vectors are passed within one file only.
    for flag in ["-fno-trapping-math", "-fno-math-errno", "-Wno-psabi", "-Wno-maybe-uninitialized"] {
        build.flag_if_supported(flag);
    }
    build.std("c++20").opt_level(3).warnings_into_errors(false).debug(false).compile("millrace_kernels");
    if openmp {
        println!("cargo:rustc-link-search=native={}", lib.display());
        println!("cargo:rustc-link-lib=dylib:+verbatim=libgomp.so.1");
    }
}

/// Where CUDA's headers are, if all that they include is there: beside torch in the folder of wheels. `nvidia-cuda-crt` and
/// `nvidia-cuda-cccl` are not among those that torch brings; set-up adds them.
fn cuda_headers(lib: &Path) -> Option<[PathBuf; 2]> {
    let cuda = lib.parent()?.parent()?.join("nvidia/cu13/include");
    let cccl = cuda.join("cccl");
    if cuda.exists() {
        println!("cargo:rerun-if-changed={}", cuda.display());
    }
    let there = cuda.join("crt/host_config.h").exists()
        && cccl.exists()
        && cuda.join("nvrtc.h").exists()
        && lib.join("libtorch_cuda.so").exists();
    there.then_some([cuda, cccl])
}
