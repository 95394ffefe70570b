"""A TCP proxy that does harm: it loses, halves, delays and repeats what passes, and lets requests arrive late."""

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping

#: The faults of bytes on their way to the server, and on their way back.
REQUEST_FAULTS = ("request_lost", "request_halved", "request_delayed", "request_late", "request_repeated")
REPLY_FAULTS = ("reply_lost", "reply_halved", "reply_delayed")


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """The connections of clients, until the listener is shut down."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        yield client


class LossyProxy:
    """Forwards loopback connections to a port. `faults` are the probabilities of each fault, for each piece of bytes;
    `loss` is that of a lost reply, `delay` the most seconds that one fault delays them.

    Replication is not harmed: a large dataset would never arrive whole.

    `request_late`: the client gets no answer, and the bytes reach the server up to `latest` seconds later, mostly when
    the client has repeated them. `request_repeated`: they reach the server immediately, and once more later. One in
    twenty of both is as late as `latest`, the others come within a tenth of it.
    """

    def __init__(
        self,
        port: int,
        *,
        loss: float = 0.0,
        faults: Mapping[str, float] | None = None,
        delay: float = 0.1,
        latest: float = 5.0,
        seed: int = 1,
    ) -> None:
        self._target: int | None = port
        self.faults = {"reply_lost": loss, **(faults or {})}
        #: Lose one reply in this many seconds; 0: none.
        self.lose_every = 0.0
        self._lost_at = time.monotonic()
        self._delay = delay
        self._latest = latest
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._closed = threading.Event()
        self._connecting = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._of_replicas: set[socket.socket] = set()
        self._late: set[threading.Thread] = set()
        self._deciding = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def dropped(self) -> int:
        """How many replies were lost."""
        return self.counts["reply_lost"]

    def refuse(self) -> None:
        """Cut all connections, and accept none until `forward`."""
        with self._connecting:
            self._target = None
            self._cut(*tuple(self._sockets))

    def forward(self, port: int) -> None:
        """Forward new connections to this port from now on."""
        self._target = port

    def settle(self) -> None:
        """End all faults, and return when everything late has arrived."""
        with self._deciding:
            self.faults = {}
            late = tuple(self._late)
        for thread in late:
            thread.join()

    def _accept(self) -> None:
        for client in accepted(self._listener):
            with self._connecting:
                server = self._connect()
                if server is None:
                    client.close()
                    continue
                self._sockets |= {client, server}
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for work in (self._requests, self._replies):
                thread = threading.Thread(target=work, args=(client, server), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _connect(self) -> socket.socket | None:
        target = self._target
        if target is None:
            return None
        try:
            server = socket.create_connection(("127.0.0.1", target))
        except OSError:
            return None
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _fault(self, kinds: tuple[str, ...], server: socket.socket) -> str:
        """The fault of the next piece of bytes, or ''."""
        if server in self._of_replicas:
            return ""
        if self.lose_every and kinds is REPLY_FAULTS and time.monotonic() - self._lost_at > self.lose_every:
            self._lost_at = time.monotonic()
            return "reply_lost"
        chance = self._random.random()
        for kind in kinds:
            chance -= self.faults.get(kind, 0.0)
            if chance < 0:
                self.counts[kind] += 1
                return kind
        return ""

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if data.startswith(b"*") and b"REPLCONF" in data[:40]:
                    self._of_replicas.add(server)
                with self._deciding:  # a fault either has its late thread when `settle` looks, or does not happen
                    fault = self._fault(REQUEST_FAULTS, server)
                    if fault == "request_late":
                        self._sockets.discard(server)
                        self._send_late(data, server)
                    elif fault == "request_repeated" and data.startswith(b"*"):
                        self._send_late(data, None)
                if fault == "request_late":
                    if self._random.random() < 0.8:
                        break  # the client learns immediately that its connection is gone
                    client.recv(1 << 20)  # it waits in vain
                    break
                if fault == "request_lost":
                    break
                if fault == "request_halved":
                    server.sendall(data[: len(data) // 2])
                    break
                if fault == "request_delayed":
                    self._closed.wait(self._random.uniform(0.0, self._delay))
                server.sendall(data)
        self._cut(client, *({server} & self._sockets))

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                fault = self._fault(REPLY_FAULTS, server)
                if server not in self._sockets:  # the request was held: nobody waits for its reply
                    return
                if fault == "reply_lost":
                    break
                if fault == "reply_halved":
                    client.sendall(data[: len(data) // 2])
                    break
                if fault == "reply_delayed":
                    self._closed.wait(self._random.uniform(0.0, self._delay))
                client.sendall(data)
        if server in self._sockets:
            self._cut(client, server)

    def _send_late(self, data: bytes, server: socket.socket | None) -> None:
        """Send bytes after a while: on the connection they came on, or if there is none or it has ended, on a new
        one. Answers are thrown away."""
        longest = self._latest if self._random.random() < 0.05 else self._latest / 10
        wait = self._random.uniform(0.0, longest)

        def send(connection: socket.socket) -> bool:
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 20):
                    pass
                return True
            return False

        def deliver() -> None:
            if self._closed.wait(wait):
                if server is not None:
                    server.close()
            elif server is None or not send(server):
                another = self._connect()
                if another is not None:
                    send(another)
            self._late.discard(thread)

        thread = threading.Thread(target=deliver, daemon=True)
        self._late.add(thread)
        thread.start()

    def _cut(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._sockets.discard(one)
            self._of_replicas.discard(one)

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone does not
        self._listener.close()
        self._acceptor.join(5)  # afterwards, nobody adds sockets and threads
        self._cut(*tuple(self._sockets))
        with self._deciding:
            threads = (*self._threads, *self._late)
        for thread in threads:
            thread.join(5)
