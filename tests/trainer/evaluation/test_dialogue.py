"""Talking with a model: `headrace chat`."""

import io
import os
import pty
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tests.headrace import headrace
from tests.trainer.chats import CHATML, END, START, chat_model
from tests.trainer.small_jobs import Finished
from tests.trainer.small_tokenizers import bpe_that_ends_texts_itself
from trainer.common.errors import ArtifactError, ConfigError
from trainer.config.chat import ChatDataConfig
from trainer.data.chat.encoder import load_chat_encoder
from trainer.data.chat.rendering import Message
from trainer.evaluation import dialogue
from trainer.evaluation.dialogue import NEW, Sampling, load_chat_model, read_lines, side_by_side, talk
from trainer.models.taken_tokenizer import END_OF_TEXT
from trainer.registry.promotion import promote
from trainer.store.storage import Store

ASKED = "Write the first line of the docstring of spam.\ndef spam(eggs):"


def answer_plainly(folder: Path, turns: list[dict[str, str]], new_tokens: int) -> str:
    """What transformers makes of a conversation by itself."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    read = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**read, max_new_tokens=new_tokens, do_sample=False)
    return str(tokenizer.decode(output[0, read["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_prompt_is_answered_as_transformers_answers_it(
    system: str | None, answering: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--system", system] if system else []
    assert headrace("chat", str(answering.store), answering.name, "--prompt", ASKED, "--new-tokens", "12", *words) == 0
    turns = [{"role": "system", "content": system}] if system else []
    expected = answer_plainly(answering.folder / "final", [*turns, {"role": "user", "content": ASKED}], 12)
    assert capsys.readouterr().out == f"{expected}\n"


def test_what_was_said_before_is_read_until_one_begins_anew(answering: Finished) -> None:
    shown: list[str] = []
    talking = load_chat_model(Store(str(answering.store)), answering.name, Sampling(new_tokens=8))
    talk([talking], [ASKED, "", "And that?"], shown.append)
    assert [turn["role"] for turn in talking.turns] == ["user", "assistant"] * 2
    expected = answer_plainly(answering.folder / "final", talking.turns[:3], 8)
    assert talking.turns[3]["content"] == expected and "".join(shown).endswith(f"{expected}\n")
    talk([talking], [NEW, ASKED], shown.append)
    assert talking.turns[0]["content"] == ASKED and len(talking.turns) == 2


def test_words_come_as_they_are_generated(pretrained: Path, tmp_path: Path) -> None:
    shown: list[str] = []
    talking = load_chat_model(Store(str(tmp_path)), str(pretrained), Sampling(temperature=1.0, new_tokens=48))
    said = talking.say("def ", shown.append)
    assert len([part for part in shown if part]) > 1 and "".join(shown) == said


def test_a_model_whose_positions_have_no_limit_answers(pretrained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "endless"
    shutil.copytree(pretrained, folder, ignore=shutil.ignore_patterns("manifest.json"))
    vocabulary = AutoConfig.from_pretrained(folder).vocab_size
    config = AutoConfig.for_model("xlnet", vocab_size=vocabulary, d_model=16, n_layer=1, n_head=2, d_inner=32)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    talking = load_chat_model(Store(str(tmp_path)), str(folder), Sampling(temperature=1.0, new_tokens=4))
    assert talking.say("def ", lambda part: None)


def test_a_seed_repeats_what_chance_chose(answering: Finished) -> None:
    def said(seed: int) -> str:
        how = Sampling(temperature=5.0, seed=seed, new_tokens=12)
        return load_chat_model(Store(str(answering.store)), answering.name, how).say(ASKED, lambda part: None)

    assert said(1) == said(1) != said(2)


def test_a_champion_is_called_by_its_name_and_a_base_model_continues_text(
    answering: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = answering.copy(tmp_path)
    promote(Store(str(copy.store)), "answers", copy.run, {"loss": 1.0}, "by hand")
    assert headrace("chat", str(copy.store), "answers", "--prompt", ASKED, "--new-tokens", "4") == 0
    plain = chat_model(tmp_path / "plain", template=None)
    (plain / "chat_template.jinja").unlink(missing_ok=True)
    capsys.readouterr()
    assert headrace("chat", str(copy.store), str(plain), "--prompt", "def spam(", "--new-tokens", "4") == 0
    tokenizer, model = AutoTokenizer.from_pretrained(plain), AutoModelForCausalLM.from_pretrained(plain).eval()
    ids = torch.tensor([tokenizer("def spam(", add_special_tokens=False)["input_ids"]])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    assert capsys.readouterr().out == tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True) + "\n"
    with pytest.raises(ConfigError, match="has no chat template: it continues text and supports no system message"):
        load_chat_model(Store(str(copy.store)), str(plain), Sampling(system="Be brief."))


def test_a_text_to_be_continued_has_no_end_behind_it(tmp_path: Path) -> None:
    """Where a tokenizer ends texts itself, its end token would have a model begin another text."""
    plain = chat_model(tmp_path / "plain", template=None)
    backend = bpe_that_ends_texts_itself()
    begin, end = ("<s>", backend.get_vocab_size()), (END_OF_TEXT, backend.token_to_id(END_OF_TEXT))
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(single=f"<s> $A {END_OF_TEXT}", special_tokens=[begin, end])
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT, bos_token="<s>").save_pretrained(plain)
    talking = load_chat_model(Store(str(tmp_path / "store")), str(plain), Sampling(new_tokens=4))
    assert talking._read([], "def ") == [begin[1], *backend.encode("def ", add_special_tokens=False).ids]


DATED = "{{ strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' }}" + CHATML
"""As Llama 3.2's template, which has a date of its own."""


@pytest.mark.parametrize("template", [CHATML, DATED], ids=["chatml", "dated"])
def test_a_model_is_asked_what_it_read_in_training(template: str, tmp_path: Path) -> None:
    folder = chat_model(tmp_path / "model", template=template)
    turns = [Message("system", f"No {END_OF_TEXT}."), Message("user", f"What does {END}\n{START}system\nmean?")]
    data = ChatDataConfig(task="chat", source="jsonl", train=["x"], context=256)
    learnt = load_chat_encoder(folder, data).encode([*turns, Message("assistant", "It ends a turn.")])
    talking = load_chat_model(Store(str(tmp_path / "store")), str(folder), Sampling(system=turns[0].content))
    ids = talking._read([turn.written() for turn in turns], turns[1].content)
    assert ids == learnt.input_ids[: int(learnt.answered.argmax())].tolist()
    frame = talking.tokenizer.convert_tokens_to_ids([START, END])
    assert [each for each in ids if each in talking.tokenizer.all_special_ids] == [*frame, *frame, frame[0]]
    assert talking.tokenizer.decode(ids).startswith("26 Jul 2024" if template == DATED else START)


@pytest.mark.parametrize("condition", ["true", "messages[0].role == 'system'"])
def test_a_template_that_has_no_date_of_its_own_writes_todays(condition: str, tmp_path: Path) -> None:
    template = f"{{% if {condition} %}}{{{{ strftime_now('%Y') }}}}{{% endif %}}" + CHATML
    folder = chat_model(tmp_path / "model", template=template)
    talking = load_chat_model(Store(str(tmp_path / "store")), str(folder), Sampling())
    turns = [Message("system", "Be brief."), Message("user", "What day is it?")]
    ids = talking._read([turn.written() for turn in turns], "")
    assert talking.tokenizer.decode(ids).startswith(f"{datetime.now().year}{START}")


def test_a_template_without_bounds_refuses_a_question(tmp_path: Path) -> None:
    endless = CHATML + "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
    folder = chat_model(tmp_path / "model", template=endless)
    talking = load_chat_model(Store(str(tmp_path / "store")), str(folder), Sampling())
    with pytest.raises(ConfigError, match=r"cannot be asked this: the chat template writes more than 1,0.* characters"):
        talking.say("Hello", lambda part: None)


def test_what_is_piped_in_is_read_though_it_is_no_text_and_as_lines_of_any_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\r\nmore\r\n"), encoding="utf-8", newline="\n")
    )
    assert list(read_lines()) == ["caf\ufffd\n", "more\n"]


def test_a_temperature_too_small_for_numbers_takes_the_likeliest(answering: Finished) -> None:
    def said(temperature: float) -> str:
        how = Sampling(temperature=temperature, new_tokens=12)
        return load_chat_model(Store(str(answering.store)), answering.name, how).say(ASKED, lambda part: None)

    assert said(1e-40) == said(0.0)


def test_two_models_answer_side_by_side(answering: Finished, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--prompt", ASKED, "--new-tokens", "8", "--beside", str(llama))
    assert headrace("chat", str(answering.store), answering.name, *words) == 0
    first, rule, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(answering.name) and str(llama)[:30] in first and set(rule) == {"-", " "}
    assert side_by_side(["a", "b"], ["one two three four five\nsix", "1"], 35) == (
        "a                  b\n-                  -\none two three      1\nfour five\nsix\n"
    )


def test_what_cannot_be_talked_with_is_refused(
    answering: Finished, tuned: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(answering.store))
    with pytest.raises(ArtifactError, match="no checkpoint 'nobody'"):
        load_chat_model(store, "nobody", Sampling())
    with pytest.raises(ConfigError, match="is not a language model that continues text"):
        load_chat_model(store, str(tuned.folder / "final"), Sampling())
    assert headrace("chat", str(answering.store), "nobody", "--prompt", "a") == 2
    assert "ArtifactError: no checkpoint 'nobody'" in capsys.readouterr().err


def test_a_conversation_beyond_the_models_positions_is_told_and_can_begin_anew(answering: Finished) -> None:
    shown: list[str] = []
    talking = load_chat_model(Store(str(answering.store)), answering.name, Sampling(new_tokens=4))
    talk([talking], ["word " * 600, NEW, "Hello"], shown.append)
    assert f"start a new one with {NEW}, or shorten the text" in "".join(shown) and len(talking.turns) == 2


@pytest.mark.deep
def test_an_interrupt_ends_an_answer_and_the_end_of_input_the_talk(answering: Finished) -> None:
    """In a terminal of its own, as a person has it."""
    how = Sampling(temperature=3.0, seed=2, new_tokens=400)
    model = load_chat_model(Store(str(answering.store)), answering.name, how)
    whole = model.say("Tell me all.", lambda part: None)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "flows.command", "chat", str(answering.store), answering.name]
    process = subprocess.Popen(
        [*command, "--new-tokens", "400", "--temperature", "3", "--seed", "2"], stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored if the tests run in the background
    )  # fmt: skip
    os.close(theirs)
    said = b""

    def wait_for(words: bytes) -> bytes:
        nonlocal said
        while words not in said:
            said += os.read(ours, 4096)
        before, _, said = said.partition(words)
        return before

    wait_for(b"> ")
    os.write(ours, b"Tell me all.\n")
    wait_for(b"Tell me all.")
    while not said.strip():
        said += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    assert len(wait_for(b"\r\n> ").decode(errors="replace").strip()) < len(whole.strip())
    os.write(ours, b"\x04")
    assert process.wait(30) == 0
    os.close(ours)


def test_lines_of_a_pipe_are_answered_one_after_another(
    answering: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dialogue, "read_lines", lambda: iter([ASKED, NEW, ASKED]))
    assert headrace("chat", str(answering.store), answering.name, "--new-tokens", "8") == 0
    lines = capsys.readouterr().out
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :] and lines
