"""What the assistant says, found in what a chat template writes, and decoded back."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.depth import once
from tests.support import write_rows
from tests.trainer.chats import CHATML, END, LLAMA2, MARKED, START, chat_job, chat_model, chat_tokenizer, write_chats
from tests.trainer.made import encode_conversations
from tests.trainer.small_tokenizers import byte_level_bpe, docstrings, unigram, word_piece
from trainer.common.errors import ArtifactError, ConfigError, PipelineError, RecordError, TokenizerError
from trainer.common.progress import silent
from trainer.config.chat import ChatDataConfig
from trainer.data.chat.encoded import BLOCK, open_chat
from trainer.data.chat.encoder import ChatEncoder, load_chat_encoder, warn_of_other_prompt
from trainer.data.chat.messages import CONVERSATION, PAIR, Form, read_conversation, read_records
from trainer.data.chat.rendering import Message
from trainer.data.chat.template import bound_template
from trainer.data.encoded import encoded_details
from trainer.data.splits import Part, bad_records
from trainer.models.taken_tokenizer import END_OF_TEXT
from trainer.store.storage import Store

ASKED = [
    Message("user", "What is  it?\n"),
    Message("assistant", "A line.\n  Größe 👩‍💻 "),
    Message("user", "And then?"),
    Message("assistant", "assistant"),
]


SPACED = CHATML.replace("'\n' + message['content']", "': ' + message['content']").replace(
    "assistant\n'", "assistant: '"
)
"""With a space before what is said, which is read as the beginning of its first word."""


def data_of(**changes: Any) -> ChatDataConfig:
    return ChatDataConfig.model_validate({"task": "chat", "source": "jsonl", "train": ["x"], "context": 256, **changes})


def encoder_of(folder: Path, template: str | None = None, **changes: Any) -> ChatEncoder:
    model = folder if folder.is_dir() else chat_model(folder)
    return load_chat_encoder(model, data_of(chat_template=template, **changes))


def said(encoder: ChatEncoder, conversation: list[Message]) -> str:
    """The masked tokens, as text."""
    found = encoder.encode(conversation)
    return str(encoder.tokenizer.decode(found.input_ids[found.answered]))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, f"A line.\n  Größe 👩‍💻 {END}assistant{END}"),
        (MARKED, f"A line.\n  Größe 👩‍💻 {END}assistant{END}"),
        (LLAMA2, f" A line.\n  Größe 👩‍💻 {END_OF_TEXT} assistant {END_OF_TEXT}"),
    ],
    ids=["chatml", "marked", "llama-2"],
)
def test_the_masked_tokens_are_the_assistants_words_and_what_ends_them(
    llama: Path, template: str, expected: str
) -> None:
    encoder = encoder_of(llama, template)
    assert said(encoder, ASKED) == expected


@pytest.mark.parametrize("template", [CHATML, MARKED, LLAMA2])
def test_the_ids_are_those_of_apply_chat_template(llama: Path, template: str) -> None:
    encoder = encoder_of(llama, template)
    messages = [message._asdict() for message in ASKED]
    expected = encoder.tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True)["input_ids"]
    assert encoder.encode(ASKED).input_ids.tolist() == expected


@pytest.mark.parametrize("template", [CHATML, MARKED, SPACED])
@pytest.mark.parametrize("answer", ["\n\nHello", "\n hello", "  Hello", "Hello"])
def test_what_stands_before_an_answer_is_read_as_it_is_when_a_model_is_asked(
    llama: Path, template: str, answer: str
) -> None:
    encoder = encoder_of(llama, template)
    found = encoder.encode([ASKED[0], Message("assistant", answer), *ASKED[2:]])
    asked = encoder.tokenizer.apply_chat_template(
        [ASKED[0]._asdict()], chat_template=template, add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert found.input_ids[: len(asked)].tolist() == asked
    assert not found.answered[: len(asked)].any() and found.answered[len(asked)]
    assert encoder.tokenizer.decode(found.input_ids[found.answered]) == f"{answer}{END}assistant{END}"


def test_a_prompt_that_is_read_otherwise_before_an_answer_is_told(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = "{% for each in messages %}{{ each.role }}:\n\n{{ each.content }}{% if each.role == 'assistant' %}" + END
    plain += "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant:\n\n{% endif %}"
    with caplog.at_level(logging.WARNING):
        warn_of_other_prompt(encoder_of(llama, CHATML))
        assert not caplog.records
        warn_of_other_prompt(encoder := encoder_of(llama, plain))
    (both,) = encoder.tokenizer.backend_tokenizer.encode("\n\n").ids
    (one,) = encoder.tokenizer.backend_tokenizer.encode("\n").ids
    assert f"ends with '\\n\\n' (tokens [{both}]) when a model is asked" in caplog.text
    assert f"follow '\\n' (tokens [{one}])" in caplog.text


@pytest.mark.parametrize("trim", [True, False])
def test_an_answer_that_begins_with_blanks_is_learnt_whole_though_offsets_leave_them_out(
    trim: bool, tmp_path: Path
) -> None:
    """A token for a line's end and a blank would stand on both sides of where it begins."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=258, initial_alphabet=alphabet, show_progress=False, special_tokens=[END])
    tokenizer.train_from_iterator(["\n " * 50], trainer)
    folder = chat_model(tmp_path / "llama")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    begins = "{% for m in messages %}{{ m['role'] + '\n' + m['content'] + eos_token }}{% endfor %}"
    encoder = encoder_of(folder, begins + "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}")
    assert "\u010a\u0120" in tokenizer.get_vocab()
    answer = "    return x"
    found = encoder.encode([ASKED[0], Message("assistant", answer)])
    assert encoder.tokenizer.decode(found.input_ids[found.answered]) == answer + END


def test_a_template_that_has_a_date_of_its_own_writes_that_when_it_is_trained_and_when_it_is_asked(llama: Path) -> None:
    """As those of Llama 3.2 have, for where `strftime_now` is not defined."""
    dated = "{{ strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' }}" + CHATML
    encoder = encoder_of(llama, dated)
    text = encoder.tokenizer.decode(encoder.encode(ASKED).input_ids)
    assert text.startswith("26 Jul 2024")
    asking = chat_tokenizer(dated)
    bound_template(asking, "any")
    assert asking.apply_chat_template([message._asdict() for message in ASKED], tokenize=False) == text


def test_answers_that_a_template_does_not_mark_are_counted(llama: Path) -> None:
    last = MARKED.replace(
        "{% if message['role'] == 'assistant' %}", "{% if message['role'] == 'assistant' and loop.last %}"
    )
    assert [encoder_of(llama, template).encode(ASKED).unmarked for template in (CHATML, MARKED, last)] == [0, 0, 1]
    assert said(encoder_of(llama, last), ASKED) == f"assistant{END}"


def test_a_tokenizer_that_reads_an_answer_otherwise_by_itself_is_told(tmp_path: Path) -> None:
    """It puts a space before every text."""
    folder = chat_model(tmp_path / "llama")
    PreTrainedTokenizerFast(tokenizer_object=unigram(), eos_token="</s>").save_pretrained(folder)
    begins, ends = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}",
        "{{ 'assistant: ' }}",
    )
    encoder = encoder_of(folder, begins + "{% if add_generation_prompt %}" + ends + "{% endif %}")
    with pytest.raises(ValueError, match="an answer begins within a token of what the chat template writes before it"):
        encoder.encode(ASKED)


@pytest.mark.parametrize(
    ("tokenizer", "special", "keeps"),
    [(byte_level_bpe, True, True), (byte_level_bpe, False, True), (word_piece, True, False)],
)
def test_the_bytes_of_answers_are_those_of_their_text_whatever_the_tokenizer_and_what_ends_them(
    tmp_path: Path, tokenizer: Callable[[], Tokenizer], special: bool, keeps: bool
) -> None:
    """Also where what ends a turn is no special token; of a tokenizer that leaves text out, it is seen that it does."""
    folder = chat_model(tmp_path / "llama")
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token="[SEP]")
    made.add_tokens([AddedToken(each, special=special) for each in (START, END)], special_tokens=special)
    made.save_pretrained(folder)
    expected = sum(len(message.content.encode()) for message in ASKED if message.role == "assistant")
    found = encoder_of(folder, CHATML).encode(ASKED)
    assert found.answer_bytes == expected and (found.answer_token_bytes == expected) is keeps
    cut = encoder_of(folder, CHATML, context=int(np.flatnonzero(found.answered)[0]) + 2).encode(ASKED)
    assert 0 < cut.answer_bytes < expected


def test_no_message_ends_its_own_turn_where_the_end_is_no_special_token(tmp_path: Path) -> None:
    folder = chat_model(tmp_path / "llama")
    made = PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token=END_OF_TEXT)
    made.add_tokens([START, END, "<think>"])
    made.save_pretrained(folder)
    encoder = encoder_of(folder, CHATML)
    hidden = f"\ue000{END}\ue001 \ue000before\ue001"
    spelt = encoder.encode(
        [Message("user", f"What is {END}?{hidden}"), Message("assistant", f"<think>It is {END} here")]
    )
    assert max(spelt.input_ids) < encoder.vocab_size
    assert spelt.input_ids.tolist().count(encoder.end_id) == 2
    assert spelt.input_ids.tolist().count(made.convert_tokens_to_ids("<think>")) == 1


def bpe(normalizer: Any, pre_tokenizer: Any) -> Tokenizer:
    """A BPE model over what these make of text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", END_OF_TEXT, START, END], show_progress=False
    )
    tokenizer.train_from_iterator(docstrings(30), trainer)
    return tokenizer


@cache
def of_pieces() -> Tokenizer:
    """A Unigram model, whose special tokens are pieces too; made once, as its training differs in its last digits."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", END_OF_TEXT, START, END]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(docstrings(30), trainer)
    return tokenizer


READERS: dict[str, Callable[[], Tokenizer]] = {
    "GPT-2": lambda: bpe(None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "RoBERTa": lambda: bpe(None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "Llama 2": lambda: bpe(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
    "T5": lambda: bpe(None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "Mistral": lambda: bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "XLM-R": of_pieces,
}
"""Tokenizers by whom they are known from: some put a mark before each text, some before the first of a conversation."""


@pytest.mark.parametrize("reader", once("Llama 2", *(name for name in READERS if name != "Llama 2")))
@pytest.mark.parametrize("template", [CHATML, LLAMA2.replace("bos_token", "'<|im_start|>'")], ids=["chatml", "llama-2"])
def test_what_spells_a_special_token_is_read_as_where_that_is_spelt_otherwise(
    tmp_path: Path, reader: str, template: str
) -> None:
    conversation = [
        Message("user", f"What is{END} {START}this{END_OF_TEXT}? "),
        Message("assistant", f"{START} and {END}."),
        Message("user", f" {END_OF_TEXT}{END_OF_TEXT}\n{END}"),
        Message("assistant", f"A {START}.{END}"),
    ]
    found = []
    for name in ("as it is", "otherwise"):
        text, write = READERS[reader]().to_str(), template
        end_of_text = END_OF_TEXT
        if name == "otherwise":
            for special in (START, END, END_OF_TEXT):
                text, write = (each.replace(special, special.upper()) for each in (text, write))
            end_of_text = END_OF_TEXT.upper()
        folder = chat_model(tmp_path / name, template=write)
        PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(text), eos_token=end_of_text, chat_template=write
        ).save_pretrained(folder)
        found.append(load_chat_encoder(folder, data_of()).encode(conversation))
    assert found[0].input_ids.tolist() == found[1].input_ids.tolist()
    assert found[0].answered.tolist() == found[1].answered.tolist()


def test_what_is_longer_than_a_window_loses_its_end(llama: Path) -> None:
    encoder = encoder_of(llama, context=16)
    found, whole = encoder.encode(ASKED), encoder_of(llama).encode(ASKED)
    assert found.truncated and not whole.truncated
    assert found.input_ids.tolist() == whole.input_ids[:16].tolist()


def test_the_template_of_the_tokenizer_is_taken_and_saved(llama: Path, tmp_path: Path) -> None:
    encoder = encoder_of(llama)
    encoder.save(tmp_path)
    assert encoder_of(llama).template.source == CHATML
    assert (tmp_path / "chat_template.jinja").read_text() == CHATML
    path = tmp_path / "other.jinja"
    path.write_text(MARKED)
    assert encoder_of(llama, str(path)).template.source == MARKED


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        ("no/such.jinja", ConfigError, "data.chat_template 'no/such.jinja' cannot be read: No such file or directory"),
        (
            "{{ strftime_now('%Y') }}" + CHATML,
            TokenizerError,
            "it writes the date of today (strftime_now), so the same",
        ),
        ("{{ ['a', 'b'] | random }}" + MARKED, TokenizerError, "takes something at random (the filter `random`)"),
        (
            "{{ ['a'] | map('random') | list }}" + MARKED,
            TokenizerError,
            "takes something at random (the filter `random`)",
        ),
        ("{% set f = lipsum %}{{ f() }}" + MARKED, TokenizerError, "the chat template writes random text (lipsum)"),
        (
            "{{ messages[0].get }}" + MARKED,
            TokenizerError,
            "writes the memory address of an object, which differs in each run",
        ),
        ("{{ (messages[0].get | string)[-9:] }}" + MARKED, TokenizerError, "training data would be random"),
        (
            "{{ (dict.fromkeys('abcdefghijkl').keys() - ['a']) | join }}" + MARKED,
            TokenizerError,
            "training data would be random",
        ),
        ("{{ 'a' * 2500000000 }}" + MARKED, TokenizerError, "the chat template takes more than 2.0 GiB of memory"),
        ("{{ messages", TokenizerError, "data.chat_template cannot render a question and an answer"),
        (
            "{% for m in messages %}{{ messages | length ~ m.content ~ eos_token }}{% endfor %}",
            TokenizerError,
            "writes the beginning of a conversation differently once the answer is there",
        ),
        (
            "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}",
            TokenizerError,
            "writes 'assistant:' before what the assistant says, but not in the prompt for an answer",
        ),
        (
            "{% for m in messages %}{{ m.content + '\n' }}{% endfor %}",
            TokenizerError,
            "writes nothing after what the assistant says; expected one token, such as {{ eos_token }}",
        ),
        (
            "{% for m in messages %}{{ m.content + '<|no_such_token|>' }}{% endfor %}",
            TokenizerError,
            "writes '<|no_such_token|>', which is",
        ),
        (
            "{% for m in messages %}{{ m.content | upper + eos_token }}{% endfor %}",
            TokenizerError,
            "does not write what",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(
    llama: Path, template: str, error: type[PipelineError], message: str
) -> None:
    with pytest.raises(error) as refused:
        encoder_of(llama, template)
    assert message in str(refused.value)


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    model = chat_model(tmp_path / "bare", template=None)
    with pytest.raises(TokenizerError, match=r"has no chat template; set data\.chat_template"):
        encoder_of(model)


def test_a_template_that_changes_its_beginning_later_is_refused_where_that_shows(llama: Path) -> None:
    """As templates do that leave out the thoughts of all answers but the last."""
    later = CHATML.replace(
        "message['content'] +", "('' if loop.last or message['role'] == 'user' else '* ') + message['content'] +"
    )
    encoder = encoder_of(llama, later)
    with pytest.raises(ValueError, match="differently once what follows is there"):
        encoder.encode(ASKED)


def test_a_window_beyond_the_models_positions_is_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.context is 513, but the model .* has 512 positions"):
        encoder_of(llama, context=513)
    assert encoder_of(llama, context=None).context == 512


def user(text: Any = "a") -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any = "b") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("a", "`messages` is text; expected a list of messages"),
        ({"role": "user"}, "`messages` is an object; expected a list"),
        ([], "`messages` is an empty list"),
        ([user(), user()], "message 2 has the role user, expected assistant: .* the order is user, user"),
        ([assistant()], "message 1 has the role assistant, expected user"),
        ([user(), {"role": "system", "content": "c"}], "message 2 has the role system, expected assistant"),
        ([user()], "there is no assistant message, so nothing to learn; the roles are user"),
        ([user(), assistant("")], r"the content of message 2 \(assistant\) is empty"),
        ([user(" \n"), assistant()], r"the content of message 1 \(user\) is empty"),
        ([user(None), assistant()], r"the content of message 1 \(user\) is missing"),
        ([user(3), assistant()], r"the content of message 1 \(user\) is int, not text"),
        ([user("\ud800"), assistant()], "is not valid UTF-8"),
        ([user(), {**assistant(), "tool_calls": []}], "message 2 has the unknown field 'tool_calls'"),
        ([user(), {"from": "gpt", "content": "b"}], "message 2 has the unknown field 'from'"),
        ([user(), {"content": "b"}], "message 2 has no role"),
        ([user(), {"role": "bot", "content": "b"}], "message 2 has the role 'bot'; roles are system, user, assistant"),
        ([user(), "b"], "message 2 is text; expected an object"),
    ],
)
def test_a_bad_conversation_is_refused_with_what_is_wrong(messages: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_conversation([messages, None, None], ["messages"])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([None, None, None], "`messages`, or `prompt` and `completion`, are missing; the record has text, id"),
        ([None, "a", None], "`completion` is missing"),
        ([None, "", "b"], "`prompt` is empty"),
        ([[user(), assistant()], "a", "b"], "the record has both `messages` and a `completion`"),
    ],
)
def test_a_record_without_a_conversation_is_refused(values: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_conversation(values, ["text", "id"])


def test_a_prompt_and_its_completion_are_a_question_and_its_answer() -> None:
    assert read_conversation([None, "a", "b"], ["prompt"]) == [Message("user", "a"), Message("assistant", "b")]


CHANCE = "{% if messages[0].content | length > 40 %}{{ (messages[0].get | string)[-9:-3] }}{% endif %}" + MARKED
"""Writes a part of an address, which nobody can tell from any other text, and of some conversations only."""


def test_a_damaged_set_that_would_not_become_what_it_was_stays_as_it_is(tmp_path: Path) -> None:
    job = chat_job(
        write_chats(tmp_path), tmp_path / "store", chat_model(tmp_path / "llama"), data__chat_template=CHANCE
    )
    folder = tmp_path / "store" / encode_conversations(job, silent()).key
    intact, manifest = (folder / "train.arrow").read_bytes(), (folder / "manifest.json").read_bytes()
    (folder / "train.arrow").write_bytes(intact[:-1])
    with pytest.raises(ArtifactError, match="rebuilding it gives other content"):
        encode_conversations(job, silent())
    assert ((folder / "train.arrow").read_bytes(), (folder / "manifest.json").read_bytes()) == (intact[:-1], manifest)


ANSWERS_ONLY = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
"""Begins with the answer, whose first token is not predicted from anything."""


@pytest.mark.parametrize("count", [1, BLOCK, BLOCK + 1])
def test_every_conversation_is_written_and_its_predicted_tokens_are_counted(count: int, tmp_path: Path) -> None:
    answers = [f"It is number {number}." for number in range(count)]
    rows = [{"prompt": f"Which is it? {answer}", "completion": answer} for answer in answers]
    for split in ("train", "validation"):
        write_rows(tmp_path / f"{split}.jsonl", rows)
    model = chat_model(tmp_path / "model", template=ANSWERS_ONLY)
    job = chat_job(tmp_path, tmp_path / "store", model, data__test=None)
    splits = open_chat(Store(job.store), encode_conversations(job, silent(), model).key).splits
    expected = [chat_tokenizer()(answer + END_OF_TEXT).input_ids for answer in answers]
    for split in splits.values():
        assert [split.read(number)[0].tolist() for number in range(len(split))] == expected
        assert split.answer_tokens.tolist() == [len(ids) - 1 for ids in expected]


def test_skipped_conversations_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = {"prompt": "What is it?", "completion": "A channel."}
    rows = [{**good, "prompt": f"What is number {number}?"} for number in range(30)]
    write_rows(tmp_path / "train.jsonl", [*rows, {"prompt": "alone"}, {"messages": []}])
    for split in ("validation", "test"):
        write_rows(tmp_path / f"{split}.jsonl", rows[:5])
    model = chat_model(tmp_path / "model")
    job = chat_job(tmp_path, tmp_path / "store", model, data__max_bad_records=2)
    with caplog.at_level(logging.WARNING):
        made = encode_conversations(job, silent(), model)
    split = encoded_details(Store(job.store), made.key)["splits"]["train"]
    assert (split["examples"], split["bad_records"]) == (30, 2)
    assert split["skipped"][0].startswith(f"{tmp_path}/train.jsonl: line 31: ")
    assert split["skipped"][1].startswith(f"{tmp_path}/train.jsonl: line 32: `messages` is an empty list")
    assert f"data set chats, train split: skipped 2 bad records ({split['skipped'][0]}; " in caplog.text


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_tools_that_the_template_would_not_be_given_are_refused(ending: str, tmp_path: Path) -> None:
    pair = {"prompt": "What is it?", "completion": "A channel.", "chosen": "A channel.", "rejected": "A wheel."}

    def read(form: Form, columns: list[str], *tools: Any) -> int:
        rows = [
            {**{name: pair[name] for name in columns}, **({} if each is ... else {"tools": each})} for each in tools
        ]
        path = str(tmp_path / f"rows.{ending}")
        if ending == "jsonl":
            write_rows(Path(path), rows)
        else:
            pq.write_table(pa.Table.from_pylist(rows), path)
        data = ChatDataConfig.model_validate({"task": "chat", "source": ending, "train": [path], "context": 64})
        return len(list(read_records(data, [Part(path, path)], bad_records(data, "train"), len, form=form)))

    assert read(CONVERSATION, ["prompt", "completion"], None, None) == 2
    assert read(CONVERSATION, ["prompt", "completion"], [], []) == 2
    assert read(CONVERSATION, ["prompt", "completion"], "", "[]") == 2
    place = "line 2" if ending == "jsonl" else "row 1"
    for form, columns in ((CONVERSATION, ["prompt", "completion"]), (PAIR, ["prompt", "chosen", "rejected"])):
        assert read(form, columns, ...) == 1
        for none, tools in ((None, [{"type": "function", "function": {"name": "weather"}}]), ("[]", "[{}]")):
            with pytest.raises(RecordError, match=rf"{place}: the record has `tools`, which are not supported"):
                read(form, columns, none, tools)
