"""Chat templates in a process of their own, which can be stopped: `python -m trainer.data.chat.renderer < REQUESTS`.

A template is a program that came with a model. One that loops without end, or multiplies a text without bound, would
take the command and its machine with it; here it ends a process, and the conversation is refused. The first line of the
requests is the template with the memory that it may take, each further one a conversation. Each answer is one line.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainer.common.errors import brief
from trainer.common.formats import plural, size
from trainer.common.stopping import check_stop, on_stop
from trainer.data.chat.messages import Message
from trainer.data.chat.rendering import GIVE_ANOTHER, Refused, Template, Written


class Bounds(NamedTuple):
    """What a template may take: seconds of computing a short conversation, and bytes of memory."""

    seconds: float = 20.0
    memory: int = 2 * 2**30

    def seconds_of(self, conversation: Sequence[Message]) -> float:
        """What it may take for a conversation: as long again for every so many messages, and characters in them."""
        characters = sum(len(message.content) for message in conversation)
        return self.seconds * (1 + len(conversation) / MESSAGES + characters / CHARACTERS)


MESSAGES, CHARACTERS = 200, 500_000


BOUNDS = Bounds()


class Renderer:
    """A template in a process that starts with the first conversation, and again after one that has ended it.

    `order`: by which Python orders sets, which hold nothing in an order of its own; the same for the same number.
    """

    def __init__(self, source: str, special: Mapping[str, str], bounds: Bounds = BOUNDS, order: int = 0) -> None:
        self._setup = {"source": source, "special": dict(special), "memory": bounds.memory}
        self._bounds, self._order = bounds, order
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def text(self, conversation: Sequence[Message], asks: bool = False) -> str:
        """What the template writes; if it `asks`, with what a model is to go on from. Raises `Refused`."""
        return str(self._ask(conversation, asks=asks)["text"])

    def write(self, conversation: Sequence[Message]) -> Written:
        """A conversation as text, with the answers in it. Raises `Refused`."""
        found = self._ask(conversation)
        return Written(found["text"], [(start, end) for start, end in found["answers"]])

    def close(self) -> None:
        """End the process."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def _ask(self, conversation: Sequence[Message], **options: Any) -> dict[str, Any]:
        process, seconds = self._process or self._start(), self._bounds.seconds_of(conversation)
        assert process.stdin and process.stdout
        with on_stop(process.kill):
            try:
                process.stdin.write(_line({"conversation": conversation, "seconds": seconds, **options}))
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
        if not answer:
            status = process.wait()
            self.close()
            check_stop()
            raise Refused(self._tell_end(status, seconds))
        found: dict[str, Any] = json.loads(answer)
        if refused := found.get("refused"):
            raise Refused(refused)
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer.data.chat.renderer"],  # not what happens to be in the current folder
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(self._order)},
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, process)
        assert process.stdin
        process.stdin.write(_line(self._setup))
        return process

    def _tell_end(self, status: int, seconds: float) -> str:
        if status >= 0:
            return (
                f"the process that renders the chat template ended with status {status}; what it wrote before tells why"
            )
        if status == -signal.SIGPROF:
            took = f"takes more than {plural(int(seconds), 'second')} of computing"
        else:
            took = (
                f"ended the process that renders it (status {status}), which may take {size(self._bounds.memory)} of "
                "memory"
            )
        return f"the chat template {took} for one conversation; {GIVE_ANOTHER}"


def main() -> int:
    """Answer requests until there are none."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # they are for the one that asks, which may have to finish
    setup = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
    template: Template | None = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # its signal ends the process
        try:
            template = template or Template(setup["source"], setup["special"])
            answer = _line(_answer(template, request))
        except MemoryError:
            answer = _line(
                {"refused": f"the chat template takes more than {size(setup['memory'])} of memory; {GIVE_ANOTHER}"}
            )
        except Refused as error:
            answer = _line({"refused": str(error)})
        except Exception as error:  # Jinja's own, and Python's of a template that cannot be compiled
            answer = _line({"refused": f"the chat template cannot be read: {brief(error)}"})
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    return 0


def _answer(template: Template, request: dict[str, Any]) -> dict[str, Any]:
    conversation = [Message(*each) for each in request["conversation"]]
    if "asks" in request:
        return {"text": template.text(conversation, request["asks"])}
    return template.write(conversation)._asdict()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


if __name__ == "__main__":
    sys.exit(main())
