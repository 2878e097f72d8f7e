import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def matmul(dtype):
    """Floating-point operations a second of a square product in the kind that is computed in: the best of six."""
    n = 8192 if DEVICE == "cuda" else 1536
    a, b = (torch.randn(n, n, dtype=dtype, device=DEVICE) for _ in range(2))
    best = 0.0
    for _ in range(6):
        start = time.perf_counter()
        (a @ b)[0, 0].item()
        best = max(best, 2 * n**3 / (time.perf_counter() - start))
    return best


