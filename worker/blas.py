"""Puts a fast BLAS under MLX on a Linux CPU, whose own wheel multiplies matrices with the slow reference BLAS."""

import ctypes
import ctypes.util
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from worker.cache_folder import cache_folder, made_once

# What MLX takes from a BLAS. The wheel's names carry a prefix; a library's other symbols stay out of the process's
# global scope, where they would shadow those of numpy's own, differently built copy of the same library.
# A decode step of one or two rows is a product of matrix and vector, bound by memory: OpenBLAS's sgemv streams the
# weights at three times the speed of its sgemm, which copies them first.
_SHIM = """
void (*headway_sgemv)(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
void (*headway_sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112, FEW_ROWS = 2 };
    int known = (ta == AS_IS || ta == TRANSPOSED) && (tb == AS_IS || tb == TRANSPOSED);
    if (order != ROW_MAJOR || !known || m > FEW_ROWS) {
        headway_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    for (int row = 0; row < m; row++) {
        const float *x = ta == AS_IS ? a + (long)row * lda : a + row;
        int step = ta == AS_IS ? 1 : lda;
        if (tb == TRANSPOSED) headway_sgemv(order, AS_IS, n, k, alpha, b, ldb, x, step, beta, c + (long)row * ldc, 1);
        else headway_sgemv(order, TRANSPOSED, k, n, alpha, b, ldb, x, step, beta, c + (long)row * ldc, 1);
    }
}
#define FORWARD(name, scalar, data) \\
    void (*headway_##name)(int, int, int, int, int, int, scalar, const data *, int, const data *, int, scalar, \\
                           data *, int); \\
    void cblas_##name(int order, int ta, int tb, int m, int n, int k, scalar alpha, const data *a, int lda, \\
                      const data *b, int ldb, scalar beta, data *c, int ldc) { \\
        headway_##name(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); \\
    }
FORWARD(dgemm, double, double)
FORWARD(cgemm, const void *, void)
"""
_FORWARDED = ("sgemm", "sgemv", "dgemm", "cgemm")
_ADVICE = (
    "MLX multiplies with its slow reference BLAS, so batching gains nothing and no figure is meaningful: "
    "install OpenBLAS (Debian: libopenblas0) or `pip install scipy-openblas32`"
)


@dataclass(frozen=True, slots=True)
class Blas:
    """Which BLAS multiplies: its name, where it comes from, the OPENBLAS_* settings found, and what is wrong."""

    name: str
    source: str
    settings: str = ""
    warning: str | None = None


class _Unusable(Exception):
    """This source has no BLAS to offer, and why."""


@functools.cache
def preload(device: str) -> Blas:
    """Load a fast BLAS ahead of MLX's own, once per process and before its first `import mlx.core`.

    `device` is where MLX will run: "metal", "cuda" or "cpu". Only a Linux CPU needs anything. Never raises: what
    went wrong is in the `warning` of the answer.
    """
    if device != "cpu" or sys.platform != "linux":
        return Blas("MLX's own", f"mlx on {device}")
    if "mlx.core" in sys.modules:
        return _reference(["mlx was imported before its BLAS was chosen"])
    reasons = []
    for source in (_from_system, _from_wheel):
        try:
            return source()
        except _Unusable as error:
            reasons.append(str(error))
    return _reference(reasons)


def _reference(reasons: list[str]) -> Blas:
    return Blas("reference BLAS", "mlx", _settings(), f"{'; '.join(reasons)}. {_ADVICE}")


def _from_system() -> Blas:
    name = ctypes.util.find_library("openblas")
    if name is None:
        raise _Unusable("no system OpenBLAS")
    library = _opened(name)
    if not hasattr(library, "cblas_sgemm"):
        raise _Unusable(f"the system's {name} has no cblas_sgemm")
    _put_under_mlx(library, "")
    return Blas(_described(library, ""), f"system {name}", _settings())


def _from_wheel() -> Blas:
    found = importlib.util.find_spec("scipy_openblas32")
    if found is None or found.origin is None:
        raise _Unusable("scipy-openblas32 is not installed")
    library = _opened(str(Path(found.origin).parent / "lib" / "libscipy_openblas.so"))
    _put_under_mlx(library, "scipy_")
    return Blas(_described(library, "scipy_"), "scipy-openblas32", _settings())


def _put_under_mlx(library: ctypes.CDLL, prefix: str) -> None:
    """The shim's names win over those of MLX's own BLAS, and lead to this library."""
    shim = _opened(str(_compiled_shim()), ctypes.RTLD_GLOBAL)
    for name in _FORWARDED:
        target = ctypes.cast(getattr(library, f"{prefix}cblas_{name}"), ctypes.c_void_p)
        ctypes.c_void_p.in_dll(shim, f"headway_{name}").value = target.value


def _opened(path: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError as error:
        raise _Unusable(f"{Path(path).name} does not load ({error})") from None


def _compiled_shim() -> Path:
    """The shim as a shared library in the cache, compiled if it is not there."""
    version = hashlib.sha256(_SHIM.encode()).hexdigest()[:12]
    try:
        return made_once(cache_folder() / f"cblas-{version}-{platform.machine()}.so", _compile_shim)
    except OSError as error:
        raise _Unusable(f"the shim cannot be kept in the cache ({error})") from None


def _compile_shim(path: Path) -> None:
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise _Unusable("no C compiler to build the shim under MLX (cc, gcc or clang)")
    command = [compiler, "-x", "c", "-", "-O2", "-shared", "-fPIC", "-o", str(path)]
    done = subprocess.run(command, input=_SHIM, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise _Unusable(f"{Path(compiler).name} does not build the shim ({done.stderr.strip()})")


def _described(library: ctypes.CDLL, prefix: str) -> str:
    """What the library says of itself: version, build options, processor."""
    try:
        config = getattr(library, f"{prefix}openblas_get_config")
    except AttributeError:
        return "a BLAS without a name"
    config.restype = ctypes.c_char_p
    return " ".join(config().decode().split())


def _settings() -> str:
    """The OPENBLAS_* variables that are set: recorded, never changed."""
    return " ".join(f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("OPENBLAS_"))
