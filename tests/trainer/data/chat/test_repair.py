"""A damaged set of conversations, encoded again: the bytes that it had, or none."""

from pathlib import Path

import pytest

from tests.trainer.chats import MARKED, chat_job, chat_model, write_chats
from tests.trainer.made import encode_conversations
from trainer.common.errors import ArtifactError
from trainer.common.progress import silent

CHANCE = "{% if messages[0].content | length > 40 %}{{ (messages[0].get | string)[-9:-3] }}{% endif %}" + MARKED
"""Writes a part of an address, which nobody can tell from any other text, and of some conversations only."""


@pytest.mark.parametrize("template", [MARKED, CHANCE], ids=["steady", "by chance"])
def test_a_damaged_set_becomes_what_it_was_or_stays_as_it_is(template: str, tmp_path: Path) -> None:
    job = chat_job(
        write_chats(tmp_path), tmp_path / "store", chat_model(tmp_path / "llama"), data__chat_template=template
    )
    folder = tmp_path / "store" / encode_conversations(job, silent()).key
    intact, manifest = (folder / "train.arrow").read_bytes(), (folder / "manifest.json").read_bytes()
    (folder / "train.arrow").write_bytes(intact[:-1])
    if template == MARKED:
        assert not encode_conversations(job, silent()).reused
        assert (folder / "train.arrow").read_bytes() == intact
        return
    with pytest.raises(ArtifactError, match="what is made today is not what was there"):
        encode_conversations(job, silent())
    assert ((folder / "train.arrow").read_bytes(), (folder / "manifest.json").read_bytes()) == (intact[:-1], manifest)
