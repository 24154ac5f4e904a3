"""Documents that share n-grams with evaluation sets."""

import csv
from pathlib import Path

import pytest

from tests.support import write_config
from tests.trainer.curating import Here, curated_job, decide, prose, reasons_of, write_documents
from trainer.common.errors import ConfigError, CorpusError
from trainer.config.jobs import PrepareJob
from trainer.corpus.decisions import read_decisions
from trainer.store.storage import Store


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.curation.curating.Workers", Here)


EVALUATION = [" ".join(prose(1000 + number, 30)) for number in range(5)]
SHORT = "seven words stand here and nowhere else"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A corpus in which some documents have parts of an evaluation set."""
    words = [prose(number, 60) for number in range(12)]
    words[2][20:33] = EVALUATION[3].upper().split()[10:23]
    words[4][20:32] = EVALUATION[3].split()[10:22]  # one too few
    words[6][5:5] = SHORT.split()
    words[8][:0] = [f"({word})" for word in EVALUATION[0].split()]
    return write_documents(tmp_path / "raw.jsonl", [" ".join(each) for each in words])


def job_of(tmp_path: Path, raw: Path, **options: object) -> PrepareJob:
    return curated_job(tmp_path / "store", {"one": str(raw)}, {"exact": None, "decontaminate": options})


def test_documents_that_share_an_n_gram_go(tmp_path: Path, raw: Path) -> None:
    path = tmp_path / "eval.txt"
    path.write_text("\n".join([*EVALUATION, SHORT, "of a"]))
    job = job_of(tmp_path, raw, files=[{"paths": [str(path)]}])
    made = decide(job)
    dirty = [number for number, reason in enumerate(reasons_of(job, made.key, "one")) if reason == "contaminated"]
    assert dirty == [2, 6, 8]
    details = read_decisions(Store(job.store), made.key).details
    assert details["kept_out"]["files"] == [str(path)] and details["kept_out"]["ngram"] == 13
    path.write_text("\n".join(EVALUATION[:1]))
    again = decide(job)
    assert again.key != made.key
    assert [n for n, reason in enumerate(reasons_of(job, again.key, "one")) if reason == "contaminated"] == [8]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_every_field_of_an_evaluation_set_counts(tmp_path: Path, raw: Path, ending: str) -> None:
    path = tmp_path / f"eval.{ending}"
    records = [{"question": EVALUATION[0], "answer": EVALUATION[3], "id": "1"}]
    if ending == "jsonl":
        write_documents(path, records)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows(records)
    for fields, expected in ((["question"], [8]), (["answer"], [2]), (["question", "answer"], [2, 8])):
        job = job_of(tmp_path, raw, files=[{"paths": [str(path)], "format": ending, "fields": fields}])
        reasons = reasons_of(job, decide(job).key, "one")
        assert [number for number, reason in enumerate(reasons) if reason == "contaminated"] == expected


def test_the_labelled_text_of_a_job_is_kept_out(tmp_path: Path, raw: Path) -> None:
    for name, text in (("train", EVALUATION[0]), ("validation", EVALUATION[3]), ("test", SHORT)):
        (tmp_path / f"{name}.csv").write_text(f"sentence,label\n{text},yes\n")
    data = {
        "source": "csv",
        "text_columns": ["sentence"],
        **{s: [str(tmp_path / f"{s}.csv")] for s in ("train", "validation", "test")},
    }
    values = {"store": "s", "data": data, "model": {"pretrained": "x"}, "training": {"max_steps": 1, "global_batch": 1}}
    path = write_config(tmp_path / "finetune.yaml", values)
    job = job_of(tmp_path, raw, jobs=[str(path)])
    reasons = reasons_of(job, decide(job).key, "one")
    assert [number for number, reason in enumerate(reasons) if reason == "contaminated"] == [2, 6]
    del data["validation"]
    write_config(path, {**values, "data": data})
    job = job_of(tmp_path, raw, jobs=[str(path)])
    reasons = reasons_of(job, decide(job).key, "one")
    assert [number for number, reason in enumerate(reasons) if reason == "contaminated"] == [6, 8], "it is cut from train"
    write_config(path, {**values, "data": {"source": "hub", "path": "a/b", "text_columns": ["sentence"]}})
    with pytest.raises(ConfigError, match="its data is of source hub; name files of it"):
        decide(job_of(tmp_path, raw, jobs=[str(path)]))


def test_a_missing_evaluation_file_is_an_error_before_anything_is_measured(tmp_path: Path, raw: Path) -> None:
    with pytest.raises(CorpusError, match=r"data.curation.decontaminate: .*no file matches '.*none.txt'"):
        decide(job_of(tmp_path, raw, files=[{"paths": [str(tmp_path / "none.txt")]}]))
    assert not (tmp_path / "store" / "measures").exists()
