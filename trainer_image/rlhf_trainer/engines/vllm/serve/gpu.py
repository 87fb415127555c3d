"""Memory of a process's first GPU, which CUDA's driver tells without torch: its import takes seconds of each start.

`python -m rlhf_trainer.engines.vllm.serve.gpu` prints it.
"""

import ctypes
import subprocess
import sys

from rlhf_api.host.printing import write_line

DRIVER = "libcuda.so.1"


def gpu_memory() -> int:
    """Memory in bytes of the first GPU of CUDA_VISIBLE_DEVICES, counted as vLLM does. Asked in a process of its own,
    since one that has initialised CUDA can fork none that computes with it. Raises RuntimeError with the driver's
    reason, where no GPU answers."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", __spec__.name], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1])
    return int(done.stdout)


def ask_driver() -> int:
    """Bytes of the first GPU, as `cuDeviceTotalMem` gives them. Raises RuntimeError with the call that failed and
    CUDA's name of the error; OSError without a driver."""
    driver = ctypes.CDLL(DRIVER)
    device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_char_p()
    for call, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDeviceTotalMem_v2", (ctypes.byref(size), device)),
    ):
        if code := getattr(driver, call)(*arguments):
            driver.cuGetErrorName(code, ctypes.byref(name))
            raise RuntimeError(f"{call}: {(name.value or b'unknown error').decode()} ({code})")
    return size.value


if __name__ == "__main__":
    try:
        write_line(str(ask_driver()), sys.stdout)
    except (OSError, RuntimeError) as error:
        sys.exit(f"no GPU for vLLM: {error}")
