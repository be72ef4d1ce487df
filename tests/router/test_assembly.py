"""The roll call: who is taken, when the run may start, who has fallen silent, when it is over."""

import pytest

from protocol.clock import SECOND
from protocol.messages import ClientReady, Hello, WorkerReady
from router.assembly import Assembly, ClientPeer, WorkerPeer


def client(index: int, of: int = 2, instance: str = "") -> Hello:
    return Hello("client", instance or f"client-{index}", index, of)


def seated(peers: Assembly, hello: Hello, heard: int = 0) -> ClientPeer:
    identity = f"peer-{len(peers.clients)}-{hello.instance}".encode()
    peers.clients[identity] = ClientPeer(identity, hello, heard)
    return peers.clients[identity]


def lose(peers: Assembly, peer: ClientPeer) -> None:
    del peers.clients[peer.identity]
    peers.lost += 1


@pytest.mark.parametrize(
    ("hello", "started", "said"),
    [
        (client(1), False, None),
        (client(1), True, "the run has started without this client"),
        (client(0, instance="another"), False, "client 0 of 2 is here already"),
        (client(0, of=3), False, "this router expects 2 clients; this is number 0 of 3"),
        (client(2), False, "this router expects 2 clients; this is number 2 of 2"),
        (Hello("worker", "w"), True, None),
    ],
)
def test_who_is_taken(hello: Hello, started: bool, said: str | None) -> None:
    peers = Assembly(2)
    seated(peers, client(0))
    refusal = peers.refusal(hello, started)
    assert refusal == said or (said is not None and refusal is not None and said in refusal)


def test_a_client_that_says_hello_twice_is_no_second_client() -> None:
    """It repeats its hello until it is welcomed, so two of them may be under way."""
    peers = Assembly(2)
    seated(peers, client(0))
    assert peers.refusal(client(0), False) is None


def test_one_worker_is_served_with() -> None:
    peers = Assembly(1)
    peers.worker = WorkerPeer(b"w", "first", 0)
    assert peers.refusal(Hello("worker", "first"), True) is None
    assert peers.refusal(Hello("worker", "second"), True) == "this router has a worker already, and serves with one"
    peers.worker = None
    assert peers.refusal(Hello("worker", "second"), True) is None


def test_ready_means_every_expected_client() -> None:
    peers = Assembly(2)
    assert not peers.all_clients_ready
    first = seated(peers, client(0))
    first.ready = ClientReady(20, (60, 7))
    assert not peers.all_clients_ready
    second = seated(peers, client(1))
    assert not peers.all_clients_ready
    assert peers.prompt_lengths == (7, 60)
    second.ready = ClientReady(20, (60, 61))
    assert peers.all_clients_ready
    assert peers.prompt_lengths == (7, 60, 61)


def test_what_a_worker_is_made_of_is_known_once_it_says_so() -> None:
    peers = Assembly(1)
    assert peers.worker_facts == {}
    peers.worker = WorkerPeer(b"w", "first", 0)
    assert peers.worker_facts == {}
    peers.worker.ready = WorkerReady(100, False, {"model": "small"})
    assert peers.worker_facts == {"model": "small"}


def test_the_cell_is_finished_when_everyone_left_or_was_lost() -> None:
    peers = Assembly(2)
    assert not peers.finished
    first, second = seated(peers, client(0)), seated(peers, client(1))
    first.done = True
    assert not peers.finished
    lose(peers, second)
    assert peers.finished


def test_a_lost_client_that_was_replaced_is_waited_for() -> None:
    peers = Assembly(2)
    lose(peers, seated(peers, client(0)))
    again, other = seated(peers, client(0, instance="again")), seated(peers, client(1))
    other.done = True
    assert not peers.finished
    again.done = True
    assert peers.finished


def test_silence_is_three_seconds_without_a_word() -> None:
    peers = Assembly(2)
    first, second = seated(peers, client(0), heard=5), seated(peers, client(1), heard=6)
    assert list(peers.silent_clients(3 * SECOND + 5)) == []
    assert list(peers.silent_clients(3 * SECOND + 6)) == [first]
    first.done = True
    assert list(peers.silent_clients(3 * SECOND + 7)) == [second]
    assert not peers.worker_silent(99 * SECOND)
    peers.worker = WorkerPeer(b"w", "first", 5)
    assert not peers.worker_silent(3 * SECOND + 5)
    assert peers.worker_silent(3 * SECOND + 6)
