"""Ranks of a framework as processes that share what this one has imported, which takes seconds."""
import gc
import os
import pathlib
import signal
import sys
import traceback

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))

from free_port import free_port  # noqa: E402


def run(main, job, world):
    """Run main(job, rank, world, port) in each. When one fails, the others would wait for it for ever, so they end."""
    port, children = free_port(), []
    gc.collect()
    gc.freeze()  # else each collection of a rank visits all that was imported, and copies those pages
    for rank in range(world):
        children.append(os.fork())
        if children[-1] == 0:
            failed = 1
            try:
                main(job, rank, world, port)
                failed = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(failed)
    while children:
        child, failed = os.wait()
        children.remove(child)
        for other in children if failed else []:
            os.kill(other, signal.SIGKILL)
        assert not failed, job
