"""In the place of SGLang's kernels, which are for GPUs and for processors with AMX.

Without AMX, SGLang computes with torch alone (`--attention-backend torch_native`), but imports its kernels' names. None is
called there; one that is says so.
"""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} is not installed")

    return absent
