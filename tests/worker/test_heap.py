"""The C library takes the settings, where there is one that has them."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.alone


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_stays_with_the_process() -> None:
    """A large array, freed and taken again, comes from the same place instead of a new mapping."""
    code = (
        "import ctypes; from worker.heap import keep_freed_memory; assert keep_freed_memory();"
        "c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; c.free.argtypes = [ctypes.c_void_p];"
        "size = ctypes.c_size_t(200 * 2**20); first = c.malloc(size); c.free(first); assert c.malloc(size) == first"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
