"""A TCP proxy that loses replies: the request arrives, the answer does not, the connection breaks."""

from __future__ import annotations

import contextlib
import random
import socket
import threading


class LossyProxy:
    """Forwards loopback connections to a port; drops a share of the replies, cutting the connection instead."""

    def __init__(self, port: int, *, loss: float, seed: int = 1) -> None:
        self._target = port
        self._loss = loss
        self._random = random.Random(seed)
        self.dropped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets |= {client, server}
            for work in (self._requests, self._replies):
                thread = threading.Thread(target=work, args=(client, server), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        self._cut(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self._random.random() < self._loss:
                    self.dropped += 1
                    break
                client.sendall(data)
        self._cut(client, server)

    def _cut(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._sockets.discard(one)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone does not
        self._listener.close()
        self._cut(*tuple(self._sockets))
        for thread in self._threads:
            thread.join(5)
