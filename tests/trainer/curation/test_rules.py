"""Rules as they are configured: each with bounds and reasons of its own, and for the corpora that it names."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.trainer.curating import curated_job, decide, prose, write_documents
from trainer.common.errors import ConfigError, CorpusError
from trainer.config.curation import CurationConfig
from trainer.config.jobs import PrepareJob
from trainer.curation.measures import all_tests
from trainer.preflight.curation import preview_curation
from trainer.store.storage import Store


def job_of(tmp_path: Path, *filters: dict[str, Any]) -> PrepareJob:
    paths = {}
    for name, start in (("one", 0), ("two", 10)):
        path = write_documents(tmp_path / f"{name}.jsonl", [" ".join(prose(start + number, 40)) for number in range(4)])
        paths[name] = str(path)
    return curated_job(tmp_path / "store", paths, {"exact": None, "filters": filters})


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"kind": "length"}, "the rule has no bound and would drop nothing: set least_bytes or most_bytes"),
        ({"kind": "pattern", "name": "x", "pattern": "a"}, "set least_matches or most_matches"),
        ({"kind": "score", "column": "q"}, "set least_score or most_score"),
        ({"kind": "pattern", "name": "x", "pattern": "(", "most_matches": 0}, "not a regular expression"),
        (
            {"kind": "pattern", "name": "x", "pattern": "a{99999999999}", "most_matches": 0},
            "not a regular expression: the repetition number is too large",
        ),
        (
            {"kind": "length", "least_bytes": 2000000, "most_bytes": 100},
            "the rule would drop every document: least_bytes is 2000000, above most_bytes, 100",
        ),
        (
            {"kind": "function", "function": "a:b", "least_value": 0.5, "most_value": 0.2},
            "the rule would drop every document: least_value is 0.5, above most_value, 0.2",
        ),
        ({"kind": "language", "languages": ["english"]}, "String should match pattern"),
        (
            {"kind": "length", "least_bytes": 1, "corpora": ["none"]},
            "names the unknown corpus 'none'; data.corpora has one, two",
        ),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(tmp_path: Path, rule: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        job_of(tmp_path, rule)


def test_a_language_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="py3langid has no language 'xx'; it has ace, af, "):
        decide(job_of(tmp_path, {"kind": "language", "languages": ["en", "xx"]}))


def test_two_rules_of_a_kind_have_reasons_of_their_own(tmp_path: Path) -> None:
    rules = [{"kind": "length", "least_bytes": 10**6, "corpora": ["one"]}, {"kind": "length", "most_bytes": 10**6}]
    tests = all_tests(CurationConfig.model_validate({"filters": [*rules, rules[0]]}).filters)
    assert [test.reason for test in tests] == [
        "length: bytes too low", "length (2): bytes too high", "length (3): bytes too low",
    ]  # fmt: skip


def test_a_function_is_asked_about_the_corpora_that_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = " ".join(prose(0, 40))
    (tmp_path / "particular.py").write_text(f"def judge(text):\n    assert text != {first!r}\n    return False\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rule = {"kind": "function", "function": "particular:judge", "corpora": ["two"]}
    with pytest.raises(Exception, match="corpus 'two': data.curation drops all".replace(".", r"\.")):
        decide(job_of(tmp_path, rule))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def judge(text): return None", "returned None, expected true, false or a number"),
        ("def judge(text): return 'yes'", "returned 'yes', expected"),
        ("def judge(text): return 'yes' * 10**6", r"judging_\d+:judge returned 'yesyes.{,30}, expected"),
        ("def judge(text): return float('nan')", "returned nan, expected true, false or a number"),
        ("def judge(text): return 1j", "returned 1j, expected true, false or a number"),
        (
            "import numpy\ndef judge(text): return numpy.complex64(1)",
            r"returned \S*\(1\+0j\)+, expected true",
        ),
        ("import numpy\ndef judge(text): return numpy.array([1.0])", r"returned array\(\[1.\]\), expected"),
        ("def judge(text): return 10**400", r"returned a whole number of 1,329 bits, expected less than 2\*\*1024"),
        ("def judge(text): return -(10**5000)", "returned a whole number of 16,610 bits"),
        ("judge = 3", "is not callable"),
        ("def judge(text: return", "SyntaxError"),
        ("raise RuntimeError('not now')", "RuntimeError: not now"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("import sys\ndef judge(text): sys.exit('not this one')", "raised SystemExit: not this one"),
    ],
)
def test_a_function_that_is_none_is_told(
    tmp_path: Path, source: str, says: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module = f"judging_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Exception, match=says) as raised:
        decide(job_of(tmp_path, {"kind": "function", "function": f"{module}:judge"}))
    assert type(raised.value).__name__ in ("ConfigError", "CorpusError")


def test_a_document_that_a_function_raises_for_is_named_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(prose(number, 40)) for number in range(30)]
    raw = write_documents(tmp_path / "long.jsonl", texts)
    (tmp_path / "raising.py").write_text(
        f"def judge(text):\n    assert text != {texts[22]!r}, 'not this one'\n    return True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rules = {"filters": [{"kind": "function", "function": "raising:judge"}]}
    job = curated_job(tmp_path / "store", {"one": str(raw)}, rules, shards={"num_shards": 1, "piece_bytes": 1024})
    for look in (lambda: decide(job), lambda: preview_curation(Store(job.store), job.data)):
        with pytest.raises(
            CorpusError, match=f"^corpus 'one': {raw}#23: raising:judge raised AssertionError: not this one"
        ):
            look()
