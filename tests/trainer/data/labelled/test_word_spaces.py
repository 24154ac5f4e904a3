"""Words of which a space is part: read as in running text, by tokenizers of every kind, in training and by who
predicts.
"""

import json
import logging
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForTokenClassification

from tests.trainer.labelled_data import END, gpt2_folder, job_of
from tests.trainer.labelled_words import word_job, write_words
from tests.trainer.small_tokenizers import byte_level_bpe
from trainer.common.progress import silent
from trainer.config.labelled import PredictJob
from trainer.data.labelled.text_encoder import TextEncoder, load_text_encoder
from trainer.kinds.labelled.predict import predict_texts
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

WORDS = ("The", "file", "isn't", "re-opened", ".", " it", "has", "12", "lines")
TEXT = " The file isn't re-opened . it has 12 lines"


def split_first(normalized: bool) -> Tokenizer:
    """A byte-level BPE that splits texts before it looks bytes up, as Llama 3, Qwen2 and SmolLM do."""
    backend = byte_level_bpe()
    quotes = pre_tokenizers.Split("'t", behavior="isolated")
    parts = [pre_tokenizers.Digits(individual_digits=True), quotes, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if normalized:
        backend.normalizer = normalizers.NFC()
    return backend


def encoder_of(model: Path, folder: Path, finished: bool = False) -> TextEncoder:
    data = job_of(folder, source="jsonl", train=["any"], task="tokens", text_columns=["tokens"], id_column=None).data
    return load_text_encoder(model, data, finished)


def ids_of(encoder: TextEncoder) -> list[int]:
    return encoder.encode([WORDS])[0].input_ids.tolist()


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "GPT2Tokenizer", "split", "normalized", "Qwen2Tokenizer"])
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen2"])
def test_words_are_read_as_in_running_text(kind: str, model_type: str, tmp_path: Path) -> None:
    backend = split_first(kind == "normalized") if kind in ("split", "normalized") else byte_level_bpe()
    settings = {"tokenizer_class": kind} if kind.endswith("r") else {}
    model = gpt2_folder(tmp_path / "model", tokenizer=backend, **settings)
    (model / "config.json").write_text(json.dumps({"model_type": model_type, "max_position_embeddings": 64}))
    own = AutoTokenizer.from_pretrained(model)
    encoder = encoder_of(model, tmp_path)
    ids = ids_of(encoder)
    assert ids == own(TEXT)["input_ids"]
    (published := tmp_path / "published").mkdir()
    encoder.save(published)
    shutil.copy(model / "config.json", published)
    assert ids_of(encoder_of(published, tmp_path, finished=True)) == ids, "who predicts"
    again = encoder_of(published, tmp_path)
    assert (ids_of(again), again.digest) == (ids, encoder.digest), "who trains the trained model"
    takes = [
        each
        for each in (AutoTokenizer, PreTrainedTokenizerFast)
        if encoder.other_class is None or each != AutoTokenizer
    ]
    assert (encoder.other_class == "Qwen2Tokenizer") == (model_type == "qwen2")
    for each in takes:
        assert each.from_pretrained(published)(list(WORDS), is_split_into_words=True)["input_ids"] == ids


def test_a_finished_model_reads_words_as_it_was_trained_to(tmp_path: Path) -> None:
    model = gpt2_folder(tmp_path / "model", tokenizer=split_first(normalized=False))
    own = AutoTokenizer.from_pretrained(model)(list(WORDS), is_split_into_words=True)["input_ids"]
    assert ids_of(encoder_of(model, tmp_path, finished=True)) == own != ids_of(encoder_of(model, tmp_path))


def test_a_model_beside_which_another_class_is_made_predicts_what_was_measured(
    tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    words, model = (
        write_words(tmp_path / "words", 60),
        gpt2_folder(tmp_path / "model", tokenizer=split_first(normalized=True)),
    )
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocab_size = byte_level_bpe().get_vocab_size()
    config = Qwen2Config(vocab_size=vocab_size, max_position_embeddings=64, num_key_value_heads=2, **size)
    Qwen2ForTokenClassification(config).save_pretrained(model)
    job = word_job(words, tmp_path / "store", model, run="tagger", training__epochs=1)
    run = train(job, silent())
    evaluate_run(job, run.key, silent())
    values = {"source": "jsonl", "paths": [str(words / "validation.jsonl")], "id_column": "id"}
    made = predict_texts(PredictJob.model_validate({"store": job.store, "model": "tagger", "data": values}), silent())
    store = Path(job.store)
    measured = (store / run.key / "predictions" / "validation.jsonl").read_text()
    assert (store / made.key / "predictions.jsonl").read_text() == measured
    told = (
        "AutoTokenizer.from_pretrained` makes Qwen2Tokenizer of the published tokenizer, which puts no space before "
        "words"
    )
    assert told in caplog.text
    make_report(Store(job.store), run.key)
    card = (store / run.key / "final" / "README.md").read_text()
    assert "tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)" in card and "AutoTokenizer" not in card
    assert END in (store / run.key / "final" / "tokenizer.json").read_text()
