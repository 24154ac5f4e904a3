"""Questions and answers about functions of the standard library."""

import itertools

from samples.chats import chats_of, parameters_of, signature_of, split_of
from samples.pairs import Function, documented_functions
from trainer.data.chat.messages import read_conversation


def function(code: str, name: str = "a/b.py:3:f") -> Function:
    return Function(name, "Do what is asked.", code)


def test_a_signature_is_one_line_whatever_the_code_has() -> None:
    code = (
        "async def f(self, a: dict[str, int] = {1: 2},\n            *rest,\n            key=':', **more) -> int:\n    "
        "return 1"
    )
    signature = signature_of(function(code))
    assert signature == "def f(self, a: dict[str, int]={1: 2}, *rest, key=':', **more):"
    assert parameters_of(signature) == ["self", "a", "rest", "key", "more"]


def test_a_signature_that_is_cut_off_or_long_asks_nothing() -> None:
    assert list(chats_of(function("def f(a,\n      b,"))) == []
    assert list(chats_of(function(f"def f({', '.join(f'argument{n}' for n in range(30))}):\n    pass"))) == []


def test_the_functions_of_a_module_are_in_one_split() -> None:
    splits = {split_of(function("", f"module.py:{line}:f{line}")) for line in range(20)}
    assert len(splits) == 1
    assert {split_of(function("", f"module{number}.py:1:f")) for number in range(60)} == {"train", "validation", "test"}


def test_each_is_a_conversation() -> None:
    chats = [chat for each in itertools.islice(documented_functions(), 20) for chat in chats_of(each)]
    assert len(chats) > 20
    for chat in chats:
        read_conversation([chat.get("messages"), chat.get("prompt"), chat.get("completion")], list(chat))
