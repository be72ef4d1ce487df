"""The BLAS under MLX: which is chosen, that it wins, and what is said when there is none."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worker.blas import Blas, preload

pytestmark = pytest.mark.alone

LINUX = sys.platform == "linux"
COMPILER = shutil.which("cc")
needs_linux = pytest.mark.skipif(not LINUX or COMPILER is None, reason="needs Linux and a C compiler")

REPORT = (
    "import json, sys; from dataclasses import asdict; from worker.blas import preload; {before}; b = preload('cpu'); "
)
SAY = "print(json.dumps({**asdict(b), 'mlx': 'mlx.core' in sys.modules}))"
NO_SYSTEM = "import ctypes.util; ctypes.util.find_library = lambda name: None"


def start(cache: Path, before: str = "pass", then: str = "pass", **env: str) -> "subprocess.Popen[str]":
    """A fresh process that chooses its BLAS, with `cache` as its cache folder."""
    code = f"{REPORT.format(before=before)}{SAY}; {then}"
    settings = {**os.environ, "HEADWAY_CACHE": str(cache), **env}
    return subprocess.Popen([sys.executable, "-c", code], env=settings, stdout=subprocess.PIPE, text=True)


def chosen(process: "subprocess.Popen[str]") -> dict[str, str | bool | None]:
    with process:
        answer: dict[str, str | bool | None] = json.loads(process.communicate(timeout=60)[0].splitlines()[0])
    assert process.returncode == 0
    return answer


@pytest.mark.parametrize("device", ["metal", "cuda"])
def test_a_gpu_needs_no_other_blas(device: str) -> None:
    assert preload(device) == Blas("MLX's own", f"mlx on {device}")


@needs_linux
def test_the_chosen_blas_is_a_fast_one_and_loads_no_mlx(tmp_path: Path) -> None:
    answer = chosen(start(tmp_path, OPENBLAS_TEST="left as it is"))
    assert (answer["warning"], answer["mlx"]) == (None, False)
    assert "OPENBLAS_TEST=left as it is" in str(answer["settings"])


@needs_linux
def test_the_wheel_serves_where_the_system_has_none(tmp_path: Path) -> None:
    answer = chosen(start(tmp_path, NO_SYSTEM))
    assert (answer["source"], answer["warning"]) == ("scipy-openblas32", None)
    assert str(answer["name"]).startswith("OpenBLAS 0.")


@needs_linux
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's trace of symbol bindings")
def test_mlx_binds_to_it_and_multiplies_right(tmp_path: Path) -> None:
    multiply = (
        "import mlx.core as mx; a = mx.arange(12.0).reshape(3, 4); "
        "assert (a @ a.T).tolist() == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]; "
        "assert [(a[:n] @ a.T).tolist() for n in (1, 2)] == [(a @ a.T)[:n].tolist() for n in (1, 2)]; "
        "assert (a[:, :2].T @ a).tolist() == [[80, 92, 104, 116], [92, 107, 122, 137]]; "
        "assert (a[:1] @ mx.contiguous(a.T)).tolist() == [[14, 38, 62]]"
    )
    trace = tmp_path / "trace"
    chosen(start(tmp_path, NO_SYSTEM, multiply, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(trace)))
    said = [line for file in tmp_path.glob("trace.*") for line in file.read_text(errors="replace").splitlines()]
    bound = [line for line in said if "libmlx" in line and "`cblas_sgemm'" in line]
    assert bound
    assert all("/cblas-" in line.split(" to ", 1)[1] for line in bound)


@needs_linux
def test_two_processes_can_compile_the_shim_at_once(tmp_path: Path) -> None:
    racers = [start(tmp_path, NO_SYSTEM) for _ in range(2)]
    assert [chosen(racer)["warning"] for racer in racers] == [None, None]
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


@needs_linux
def test_the_shim_is_compiled_once(tmp_path: Path) -> None:
    first, again = chosen(start(tmp_path, NO_SYSTEM)), chosen(start(tmp_path, NO_SYSTEM, PATH=""))
    assert again == first


@needs_linux
@pytest.mark.parametrize(
    ("before", "env", "why"),
    [
        (NO_SYSTEM, {"PATH": ""}, "no C compiler"),
        (f"{NO_SYSTEM}; sys.modules['scipy_openblas32'] = None", {}, "scipy-openblas32 is not installed"),
        ("import mlx.core", {}, "mlx was imported before"),
    ],
)
def test_without_a_fast_blas_there_is_a_warning_that_says_what_to_do(
    tmp_path: Path, before: str, env: dict[str, str], why: str
) -> None:
    answer = chosen(start(tmp_path, before, **env))
    assert (answer["name"], answer["source"]) == ("reference BLAS", "mlx")
    assert why in str(answer["warning"])
    assert "pip install scipy-openblas32" in str(answer["warning"])


def built(path: Path, source: str) -> str:
    assert COMPILER
    subprocess.run([COMPILER, "-x", "c", "-", "-shared", "-fPIC", "-o", str(path)], input=source, text=True, check=True)
    return f"import ctypes.util; ctypes.util.find_library = lambda name: {str(path)!r}"


@needs_linux
def test_a_system_blas_comes_first(tmp_path: Path) -> None:
    found = built(
        tmp_path / "libopenblas.so.0",
        "".join(f"void cblas_{name}(void) {{}}" for name in ("sgemm", "sgemv", "dgemm", "cgemm")),
    )
    answer = chosen(start(tmp_path, found))
    assert (answer["name"], answer["warning"]) == ("a BLAS without a name", None)
    assert str(answer["source"]).endswith("libopenblas.so.0")


@needs_linux
def test_a_system_blas_without_the_c_interface_is_passed_over(tmp_path: Path) -> None:
    answer = chosen(start(tmp_path, built(tmp_path / "libopenblas.so.0", "void sgemm_(void) {}")))
    assert (answer["source"], answer["warning"]) == ("scipy-openblas32", None)
