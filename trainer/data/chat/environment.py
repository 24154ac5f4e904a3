"""The environment in which chat templates are rendered.

It is that of `transformers.utils.chat_template_utils`, without what would make the text of a conversation change
between runs.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

OF_ONE_MESSAGE = {"index", "index0", "first", "previtem", "cycle", "changed", "depth", "depth0"}
"""Attributes of a loop that do not depend on messages after the current one."""

CHANGING = {
    "strftime_now": "writes the date of today (strftime_now)", "lipsum": "writes random text (lipsum)",
    "random": "takes something at random (the filter `random`)",
}  # fmt: skip
"""Template functions whose result would change between runs, by name."""

WHY_FIXED = (
    "so the same conversation would give different tokens in another run; set data.chat_template to a copy that writes "
    "something fixed there"
)

NO_DATE = jinja2.Undefined(hint=f"it {CHANGING['strftime_now']}, {WHY_FIXED}")
"""The value of `strftime_now`: a template that checks whether it is defined has its own date to write instead."""


class Refused(ValueError):
    """A template cannot be used for a conversation; the message gives the reason."""


class Environment(ImmutableSandboxedEnvironment):
    """The environment of transformers, without randomness; it counts what is written, and records marked ranges.

    `looked_ahead`: whether a template used an attribute of a loop that depends on later messages.
    """

    def __init__(self, dated: bool, **options: Any) -> None:
        super().__init__(**options)
        self.written, self.marks, self.looked_ahead = 0, list[tuple[int, int]](), False
        self.filters |= {"tojson": _tojson, "random": _refusing("random")}
        self.globals |= {"raise_exception": _raise, "dict": _Dict(), "namespace": _Namespace}
        self.globals |= {"strftime_now": datetime.now().strftime if dated else NO_DATE, "lipsum": _refusing("lipsum")}

    def begin(self) -> list[str]:
        """Reset the counts; returns an empty list for the blocks to write."""
        self.written, self.marks, self.looked_ahead = 0, [], False
        return []

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.looked_ahead |= isinstance(obj, LoopContext) and attribute not in OF_ONE_MESSAGE
        return super().getattr(obj, attribute)


class Marks(Extension):
    """`{% generation %} … {% endgeneration %}` around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        content, environment = caller(), self.environment
        assert isinstance(environment, Environment)
        environment.marks.append((environment.written, environment.written + len(content)))
        return content


class _Dict:
    """`dict` in templates, without its other attributes."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        return dict.fromkeys(*given)


class _Namespace(Namespace):
    """`namespace` in templates; its attributes may not begin with an underscore."""

    def __init__(*given: Any, **named: Any) -> None:  # a template may name an attribute `self`
        attributes = dict(*given[1:], **named)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(given[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace has no attribute {name!r}: it may not begin with an underscore"
        )


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*given: Any, **named: Any) -> NoReturn:
        raise Refused(f"the chat template {CHANGING[name]}, {WHY_FIXED}")

    return refuse
