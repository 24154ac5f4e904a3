"""What a pretrained model may bring: no code of its own, and nothing that would have to be unpickled."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests import ROOT
from tests.trainer.labelled_data import gpt2_folder
from trainer.common.errors import ArtifactError, ConfigError
from trainer.config.corpora import CorpusConfig, DataConfig, TokenizerConfig
from trainer.config.labelled import FinetuneJob
from trainer.config.models import ModelConfig
from trainer.data.labelled.text_encoder import load_text_encoder
from trainer.data.tokenizer_training import preview_tokenizer
from trainer.models.causal import load_model, resolve_config
from trainer.models.classifiers import load_classifier
from trainer.models.pretrained import check_settings, find_model
from trainer.models.tokenizer import TokenizerInfo
from trainer.store.storage import Store

NO_TOKENIZER = TokenizerInfo(json="", sha256="", eos_id=0, max_id=1)
DETAILS = {"task": "classification", "classes": ["a", "b"], "pad_id": 0, "vocab_size": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with its tokenizer, in safetensors."""
    folder = gpt2_folder(tmp_path_factory.mktemp("models") / "gpt2")
    config = GPT2Config.from_pretrained(folder, n_layer=1, n_embd=8, n_head=1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def model(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "model"))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


class Bomb:
    """Unpickled, it would leave a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_a_model_that_needs_code_of_its_repository_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    (model / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n")
    change(
        model / "config.json",
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        model_type="evil",
    )
    expected = r"config.json of model .* has an auto_map .*evil.Config.*headrace never runs"
    with pytest.raises(ConfigError, match=expected):
        load_model(model)
    with pytest.raises(ConfigError, match=expected):
        resolve_config(ModelConfig(pretrained=str(model)), NO_TOKENIZER, 8)
    job = classification(model)
    with pytest.raises(ConfigError, match=expected):
        load_classifier(Store(str(tmp_path / "store")), job, DETAILS, None)
    with pytest.raises(ConfigError, match=expected):
        load_text_encoder(model, job.data)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_that_needs_code_of_its_repository_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    expected = r"tokenizer_config.json of model .* has an auto_map .*evil.Tokenizer"
    with pytest.raises(ConfigError, match=expected):
        load_text_encoder(model, classification(model).data)
    whole = json.loads((model / "tokenizer.json").read_text())["model"]
    (model / "vocab.json").write_text(json.dumps(whole["vocab"]))
    (model / "merges.txt").write_text("\n".join(map(" ".join, whole["merges"])))
    (model / "tokenizer.json").unlink()
    corpora = [CorpusConfig(name="a", paths=["a.txt"])]
    with pytest.raises(ConfigError, match=expected):
        preview_tokenizer(Store(str(tmp_path)), DataConfig(corpora=corpora, tokenizer=TokenizerConfig(path=str(model))))


@pytest.mark.deep
def test_a_prompt_on_a_terminal_is_never_waited_for(model: Path) -> None:
    change(model / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"}, model_type="evil")
    program = f"from trainer.models.causal import load_model; load_model({str(model)!r})"
    ended = subprocess.run([sys.executable, "-c", program], input="y\n", capture_output=True, text=True, timeout=120)
    assert ended.stderr.rstrip().splitlines()[-1].startswith("trainer.common.errors.ConfigError")
    assert "[y/N]" not in ended.stdout


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("attention", ["somebody/attention", {"": "somebody/attention"}])
def test_attention_of_the_hub_is_refused(model: Path, key: str, attention: object) -> None:
    change(model / "config.json", **{key: attention})
    expected = re.escape(f"has the attention implementation {attention!r}: that is code of the hub")
    with pytest.raises(ConfigError, match=f"{expected}.*; remove {key} from a local copy"):
        check_settings(str(model))


def test_pickled_weights_are_not_loaded_and_the_message_says_how_to_convert_them(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "unpickled"
    (model / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Bomb(trace)}, model / "pytorch_model.bin", pickle_module=pickle)
    job = classification(model)
    expected = r"pytorch_model.bin is pickled and is not loaded; if you trust it, convert it: .*save_pretrained"
    with pytest.raises(ConfigError, match=expected):
        load_model(model)
    with pytest.raises(ConfigError, match=expected):
        load_classifier(Store(str(tmp_path / "store")), job, DETAILS, None)
    assert not trace.exists()


@pytest.mark.parametrize("tensor", ["model.layers.0.mlp.up_proj.weight", "lm_head.weight"])
def test_a_language_model_whose_files_lack_a_weight_is_not_loaded_with_a_random_one(
    tmp_path: Path, tensor: str
) -> None:
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    whole = LlamaForCausalLM(config)
    left = {name: value for name, value in whole.state_dict().items() if name != tensor}
    whole.save_pretrained(tmp_path, state_dict=left)
    with pytest.raises(ConfigError, match=f"lacks 1 weights of a LlamaForCausalLM: {tensor}; use one with all weights"):
        load_model(tmp_path)


INDEX_DAMAGED = "model.safetensors.index.json is damaged"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("../../elsewhere.safetensors", f"{INDEX_DAMAGED} .*'../../elsewhere.safetensors' is not a plain file name"),
        ("/etc/passwd", f"{INDEX_DAMAGED} .*'/etc/passwd' is not a plain file name"),
        ("missing.safetensors", "missing.safetensors is missing"),
        ("tokenizer.json", f"{INDEX_DAMAGED} .*'tokenizer.json' is not a safetensors file"),
        ("a\\b", f"{INDEX_DAMAGED} .* is not a plain file name"),
        (7, f"{INDEX_DAMAGED} .*7 is not a safetensors file"),
    ],
)
def test_an_index_that_names_files_elsewhere_is_refused(model: Path, file: object, said: str) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    index = {
        "metadata": {},
        "weight_map": {"transformer.wte.weight": "model-00001-of-00001.safetensors", "other": file},
    }
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=said):
        load_model(model)


def test_a_model_of_the_store_is_looked_at_too(empty_store: Store, model: Path) -> None:
    from tests.trainer.report_runs import publish

    change(model / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    files = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    publish(empty_store, "runs/a/final", "model", files, {"run": "a"})
    with pytest.raises(ConfigError, match="auto_map"):
        load_model(find_model(empty_store, "runs/a/final").folder)
    with pytest.raises(ArtifactError, match="no checkpoint"):
        find_model(empty_store, "runs/b/final")


LOADERS = {"trainer/models/pretrained.py", "trainer/models/causal.py", "trainer/models/taken_tokenizer.py"}
"""They look at what is loaded first."""


def test_nothing_is_loaded_but_by_the_loaders_that_look_first() -> None:
    loads = re.compile(r"^(?!.*[\"`']).*(?:Auto\w+|kind|Tokenizer\w*|family)\)?\.from_pretrained\(", re.MULTILINE)
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "trainer").rglob("*.py") if loads.search(path.read_text())}
    assert (
        found
        - {
            "trainer/kinds/pretraining/page.py",
            "trainer/kinds/labelled/page.py",
            "trainer/kinds/tuning_page.py",
        }
        == LOADERS
    )


def classification(model: Path) -> FinetuneJob:
    data = {
        "name": "pairs",
        "source": "jsonl",
        "train": ["x.jsonl"],
        "validation": ["x.jsonl"],
        "text_columns": ["text"],
    }
    values = {"store": "none", "data": data, "model": {"pretrained": str(model)}, "training": {"epochs": 1}}
    return FinetuneJob.model_validate(values)
