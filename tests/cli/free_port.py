"""A port for a program that is told its number, or that binds it a second time."""
import contextlib
import pathlib
import random
import socket


def free_port():
    """It is none of those that the system gives to connections and to listeners without a number, so another program does not
    get it in the meantime. Where these are all ports, it is one that was free a moment ago."""
    low, high = map(int, pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    others = [p for p in range(10000, 65536) if not low <= p <= high]
    for port in [*random.sample(others, min(len(others), 100)), 0]:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as s:
            return s.getsockname()[1]
    raise OSError("no port is free")
