"""An HTTP proxy that simulates a bad network: it is slow, refuses, resets, and sends incomplete answers."""

import random
import re
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar
from urllib.parse import urlsplit

KINDS = ("slow down", "internal error", "reset", "half")
ANSWERS = {
    "slow down": (503, "Slow Down", "SlowDown"),
    "internal error": (500, "Internal Server Error", "InternalError"),
    "expired": (400, "The provided token has expired.", "ExpiredToken"),
    "skewed": (
        403,
        "The difference between the request time and the current time is too large.",
        "RequestTimeTooSkewed",
    ),
    "archived": (403, "The operation is not valid for the object's storage class", "InvalidObjectState"),
    "denied": (403, "Access Denied", "AccessDenied"),
    "elsewhere": (400, "The region 'us-east-1' is wrong; expecting 'eu-central-1'", "AuthorizationHeaderMalformed"),
    "redirected": (301, "Moved Permanently", "PermanentRedirect"),
    "no conditions": (501, "A header you provided implies functionality that is not implemented", "NotImplemented"),
}
"""The answer to each such request; with "no conditions" only to conditional ones."""


class Faults:
    """The proxy's behaviour: each request waits `latency` seconds, and a `share` of them fail, as in `counts`.

    `always` is the fate of all requests from now on, such as "ignore conditions", or of those alone whose first line
    holds `only`; `lines` are the requests' first lines.
    """

    def __init__(self, target: str, share: float, latency: float, seed: int = 0) -> None:
        parts = urlsplit(target)
        self.target = (str(parts.hostname), int(parts.port or 80))
        self.share, self.latency, self.counts = share, latency, Counter[str]()
        self.always: str | None = None
        self.only = b""
        self.lines: list[bytes] = []
        self._random, self._lock = random.Random(seed), threading.Lock()

    def next(self) -> str:
        """The fate of the next request."""
        with self._lock:
            fate = self.always or (self._random.choice(KINDS) if self._random.random() < self.share else "none")
            self.counts[fate] += 1
            return fate


@contextmanager
def faulty(target: str, share: float, latency: float) -> Iterator[tuple[str, Faults]]:
    """Run the proxy during the block; yield its address."""
    faults = Faults(target, share, latency)

    class Handler(_Handler):
        plan = faults

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads, request_queue_size = True, True, 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", faults
        finally:
            server.shutdown()
            thread.join()


def _refusing_each(keys: Sequence[bytes]) -> bytes:
    """The answer to a deletion of several objects, none of which was deleted."""
    said = b"<Code>AccessDenied</Code><Message>Access Denied</Message>"
    errors = b"".join(b"<Error>%s%s</Error>" % (key, said) for key in keys)
    text = b"<?xml version='1.0'?><DeleteResult>%s</DeleteResult>" % errors
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text)


class _Handler(socketserver.StreamRequestHandler):
    """One request per connection, so that each has its own fate."""

    plan: ClassVar[Faults]

    def handle(self) -> None:
        with suppress(OSError):
            head = self._read_head()
            if head is None:
                return
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            if re.search(rb"(?i)\r\nexpect: *100-continue", head):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = self.rfile.read(int(length[1])) if length else b""
            line = head.partition(b"\r\n")[0]
            self.plan.lines.append(line)
            time.sleep(self.plan.latency)
            self._answer(self.plan.next() if self.plan.only in line else "none", head, body)

    def _answer(self, fate: str, head: bytes, body: bytes) -> None:
        conditional = re.search(rb"(?i)\r\nif-(none-)?match:", head) is not None
        if fate in ANSWERS and (conditional or fate != "no conditions"):
            status, reason, code = ANSWERS[fate]
            text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{reason}</Message></Error>"
            lines = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(text)}", "Connection: close", "", text]
            if head.startswith(b"HEAD "):
                lines[-1] = ""
            self.wfile.write("\r\n".join(lines).encode())
            return
        if fate == "no deletion" and head.startswith(b"POST ") and b"?delete" in head.partition(b"\r\n")[0]:
            self.wfile.write(_refusing_each(re.findall(rb"<Key>.*?</Key>", body)))
            return
        if fate == "reset":
            self._reset()
            return
        if fate == "silence":
            self.rfile.read(1)  # until the other side gives up
            return
        answer = self._forward(head, body)
        if fate == "ignore conditions" and conditional and answer.startswith(b"HTTP/1.1 412 "):
            answer = b'HTTP/1.1 200 OK\r\nETag: "0123"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
        if fate == "short" and head.startswith(b"GET "):
            start, _, content = answer.partition(b"\r\n\r\n")
            content = content[: len(content) // 2]
            length = b"content-length: %d" % len(content)
            answer = re.sub(rb"(?i)content-length: *\d+", length, start) + b"\r\n\r\n" + content
        if fate == "half":
            self.wfile.write(answer[: len(answer) // 2])
            self._reset()
        else:
            self.wfile.write(answer)

    def _forward(self, head: bytes, body: bytes) -> bytes:
        lines = [line for line in head.split(b"\r\n") if not re.match(rb"(?i)(connection|expect):", line)]
        with socket.create_connection(self.plan.target) as server:
            server.sendall(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]) + b"\r\n\r\n" + body)
            answer = b"".join(iter(lambda: server.recv(2**16), b""))
        start, _, rest = answer.partition(b"\r\n")
        return start + b"\r\nConnection: close\r\n" + rest

    def _read_head(self) -> bytes | None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line:
                return None
            head += line
        return head[:-4]

    def _reset(self) -> None:
        """Close the connection with a reset."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
