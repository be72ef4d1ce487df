"""The limit of the wire: what the sockets alone take for a round trip, client to router to worker and back.

The same sockets, priorities and cores as a run has, and 100 bytes that nobody looks into: what Headway adds to this is
its own.

    python -m tests.bench.echo
"""

import multiprocessing
import os
import time
from multiprocessing.connection import Connection

import click
import zmq

from experiments.statistics import nearest_rank
from protocol.clock import MS, SECOND, now
from protocol.priority import CLIENT_RANK, ROUTER_RANK, cores_awake, run_first, stay_on_one_core, tighten_timers
from protocol.wire import carriers, ipc_folder

SPIN = MS // 2


def relay(front: str, back: str, trips: int) -> None:
    """The router's part."""
    tighten_timers()
    if run_first(ROUTER_RANK) == "real-time":
        stay_on_one_core()
    context = zmq.Context()
    inner, outer = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    outer.bind(front)
    inner.bind(back)
    poller = zmq.Poller()
    poller.register(inner, zmq.POLLIN)
    poller.register(outer, zmq.POLLIN)
    worker, _ = inner.recv_multipart()
    while trips:
        for socket, _ in poller.poll():
            identity, data = socket.recv_multipart()
            if socket is outer:
                client = identity
                inner.send_multipart([worker, data])
            else:
                outer.send_multipart([client, data])
                trips -= 1


def answer(back: str, trips: int) -> None:
    """The worker's part."""
    os.nice(10)
    socket = carriers(ROUTER_RANK).socket(zmq.DEALER)
    socket.connect(back)
    socket.send(b"")
    for _ in range(trips):
        socket.send(socket.recv())


def ask(front: str, trips: int, rate: float, found: Connection) -> None:
    """The client's part: round trips in milliseconds, ascending."""
    tighten_timers()
    run_first(CLIENT_RANK)
    socket = carriers(CLIENT_RANK).socket(zmq.DEALER)
    socket.connect(front)
    took = []
    with cores_awake():
        begin = now() + SECOND // 2
        for trip in range(trips):
            due = begin + round(trip * SECOND / rate)
            while (left := due - now()) > 0:
                if left > SPIN:
                    time.sleep((left - SPIN) / SECOND)
            sent = now()
            socket.send(bytes(100))
            socket.recv()
            took.append((now() - sent) / MS)
    found.send(sorted(took))


@click.command()
@click.option("--trips", default=2_000, show_default=True)
@click.option("--rate", default=200.0, show_default=True, help="Round trips a second.")
def main(trips: int, rate: float) -> None:
    """Print the round trip through bare sockets, nearest rank."""
    folder = ipc_folder()
    front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
    mine, theirs = multiprocessing.Pipe()
    processes = [
        multiprocessing.Process(target=relay, args=(front, back, trips)),
        multiprocessing.Process(target=answer, args=(back, trips)),
        multiprocessing.Process(target=ask, args=(front, trips, rate, theirs)),
    ]
    for process in processes:
        process.start()
    took = mine.recv()
    for process in processes:
        process.join()
    click.echo(
        "bare round trip: " + ", ".join(f"p{100 * q:.0f} {nearest_rank(took, q):.3f} ms" for q in (0.5, 0.95, 0.99))
    )


if __name__ == "__main__":
    main()
