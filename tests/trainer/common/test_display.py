"""Numbers as people read them."""

import json
import math
import os
import subprocess
import sys

import pytest

from trainer.common.display import (
    Table,
    duration,
    number,
    percent,
    perplexity,
    plain_score,
    plural,
    score,
    short,
    significant,
    size,
    text_table,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(1234.5678), "1,234.568"),
        (number(-1.5, 2), "−1.50"),
        (number(math.nan), "–"),
        (number(-0.0001), "0.000"),
        (significant(0.030627), "0.0306"),
        (significant(999.6), "1,000"),
        (significant(-0.0), "0"),
        (significant(4194.3), "4,194"),
        (score(0.860294), "0.8603"),
        (score(0.0), "0.0000"),
        (score(-0.25), "−0.2500"),
        (score(2.5e-5), "2.5e−05"),
        (score(52_345.678), "52,346"),
        (score(math.nan), "–"),
        (score(0.99996), "0.99996"),
        (score(1 - 1e-12), "1.0000"),
        (plain_score(-2.2e-6), "-2.2e-06"),
        (plain_score(math.inf), "inf"),
        (plain_score(52345.678), "52345.6780"),
        (plain_score(2.5e60), "2.5e+60"),
        (plain_score(0.81999, 0.82), "0.81999"),
        (plain_score(2e-6, 0.5), "2e-06"),
        (short(122_880), "123 K"),
        (short(2_615_424), "2.62 M"),
        (short(999_999), "1.00 M"),
        (short(1500), "1,500"),
        (short(70_000_000_000), "70.0 B"),
        (significant(2.5e7), "2.5e+07"),
        (significant(-1234.5), "−1,234"),
        (percent(0.40566), "40.6 %"),
        (size(2**20 - 1), "1.0 MiB"),
        (percent(0.9998), "99.98 %"),
        (percent(1.0), "100 %"),
        (duration(0.000336), "0.336 ms"),
        (duration(0.9999), "1.0 s"),
        (duration(59.97), "1 min 00 s"),
        (duration(3599.8), "1 h 00 min"),
        (duration(7384), "2 h 03 min"),
        (size(10_466_744), "10.0 MiB"),
        (size(12), "12 bytes"),
        (perplexity(6.528), "684"),
        (perplexity(math.inf), "–"),
        (perplexity(900.0), "1.01e+304"),
        (plural(1, "rank"), "1 rank"),
        (plural(2, "corpus", "corpora"), "2 corpora"),
    ],
)
def test_numbers_read_well(shown: str, expected: str) -> None:
    assert shown == expected


CONTROLLING, HARMLESS = "a\x1b]0;title\x07\x9b2J\r b\tc", r"a\x1b]0;title\x07\x9b2J\r b" + "\tc"


@pytest.mark.parametrize(
    ("stream", "program", "ended"),
    [
        ("stdout", "from trainer.common.display import show; show({!r})", ""),
        ("stderr", "from trainer.common.process import print_error; print_error({!r})", "\n"),
        (
            "stderr",
            "import logging; from trainer.training.logs import for_terminals, start_logging; "
            "start_logging(logging.INFO, for_terminals()); logging.warning('%s', {!r})",
            "\n",
        ),
    ],
)
def test_texts_cannot_control_a_terminal(stream: str, program: str, ended: str) -> None:
    command = [sys.executable, "-c", program.format(CONTROLLING)]
    ours, its = os.openpty()
    subprocess.run(command, **{stream: its}, check=True)
    os.close(its)
    assert os.read(ours, 1000).decode().endswith(HARMLESS + ended.replace("\n", "\r\n"))
    os.close(ours)
    elsewhere = getattr(subprocess.run(command, capture_output=True, check=True), stream)
    assert elsewhere.decode().endswith(CONTROLLING + ended)


def test_characters_that_the_terminal_lacks_are_printed_as_escapes() -> None:
    program = (
        "from trainer.common.display import *; escape_unprintable(); show('é –\\n'); show_json(['é', '\\U0001f600'])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    ).stdout
    text, _, values = printed.decode("ascii").partition("\n")
    assert text == r"\xe9 \u2013" and json.loads(values) == ["é", "\U0001f600"]


def test_columns_are_aligned_by_the_width_of_their_characters() -> None:
    table = Table(["class", "n"], [["中文", "1"], ["e\u0301", "1"], ["abcd", "10"]])
    assert text_table(table) == "class   n\n中文    1\ne\u0301       1\nabcd   10\n"


@pytest.mark.parametrize("print_all", ["show(lines)", "with any_reader(): print(lines); print('end')"])
def test_a_reader_that_stops_early_is_no_error(print_all: str) -> None:
    program = f"from trainer.common.display import *; lines = 9999 * 'line\\n'\n{print_all}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
    assert (process.returncode, said) == (0, "")
