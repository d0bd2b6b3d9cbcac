"""Report a trainer's progress to tp-run: the five calls of tp_progress.h, through ctypes.

    from tp_progress import Progress
    progress = Progress(rank, world)
    progress.phase(Progress.TRAIN)
    for step in range(steps):
        with progress.collective():
            all_reduce(...)
        progress.step(step + 1, loss)
    progress.close()

The library is the one that TP_PROGRESS_LIB names, that of the folder where this file is installed
or built, or the system's. Without it, or without tp-run, the calls do nothing.
"""
import contextlib
import ctypes
import os


def _load():
    here = os.path.dirname(os.path.abspath(__file__))
    library = "libtp-progress.so.0"
    for name in (os.environ.get("TP_PROGRESS_LIB"), os.path.join(here, "..", "lib", library),
                 os.path.join(here, "..", "..", library), library):
        if name:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(name)
    return None


class Progress:
    INIT, LOAD, TRAIN, SAVE, DRAIN = range(5)

    def __init__(self, rank, world):
        self._lib, self._slot = _load(), None
        if self._lib:
            lib = self._lib
            lib.tp_progress_open.restype = ctypes.c_void_p
            lib.tp_progress_open.argtypes = [ctypes.c_int, ctypes.c_int]
            lib.tp_progress_step.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_double]
            lib.tp_progress_phase.argtypes = [ctypes.c_void_p, ctypes.c_int]
            lib.tp_progress_collective.argtypes = [ctypes.c_void_p, ctypes.c_int]
            lib.tp_progress_close.argtypes = [ctypes.c_void_p]
            self._slot = lib.tp_progress_open(rank, world)

    def step(self, step, loss=float("nan")):
        if self._slot:
            self._lib.tp_progress_step(self._slot, step, loss)

    def phase(self, phase):
        if self._slot:
            self._lib.tp_progress_phase(self._slot, phase)

    @contextlib.contextmanager
    def collective(self):
        if self._slot:
            self._lib.tp_progress_collective(self._slot, 1)
        try:
            yield
        finally:
            if self._slot:
                self._lib.tp_progress_collective(self._slot, 0)

    def close(self):
        if self._slot:
            self._lib.tp_progress_close(self._slot)
            self._slot = None


if __name__ == "__main__":  # the example: one rank, twenty steps of 50 ms
    import time
    me = Progress(0, 1)
    me.phase(Progress.TRAIN)
    for i in range(20):
        with me.collective():
            time.sleep(0.05)
        me.step(i + 1, 5.0 / (1 + i))
    me.close()
    print("20 steps")
