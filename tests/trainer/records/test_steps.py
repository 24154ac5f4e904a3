"""Steps: what names an artifact, and how it is found, made, made again, and explained, whatever its kind."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from trainer.common.errors import ArtifactError, ConfigError
from trainer.preflight.step_status import status, why
from trainer.records.lease import held
from trainer.records.steps import Explains, Step, dependents_of, find_artifact, find_published, make, publish
from trainer.store.manifest import MANIFEST, Input, Manifest, read_manifest, write_manifest
from trainer.store.storage import Store

RECIPE: Mapping[str, Any] = {"format": 1, "data.size": 3, "contents": {"text": "a"}}
INPUTS = {
    "tokenizer": Input(key="tokenizers/bpe-1", content="same"),
    "decisions": Input(key="decisions/d", content="x"),
}


def step_of(store: Store, content: bytes = b"tokens", recipe: Mapping[str, Any] = RECIPE, **options: Any) -> Step:
    """A step that writes one file, and a note of how often it was made."""
    made = options.pop("made", [])

    def build(step: Step) -> Manifest:
        made.append(content)
        with step.store.staging(key=step.key) as folder:
            (folder / "data.bin").write_bytes(content)
            (folder / "note.json").write_text(str(len(made)))
            return publish(step, folder, {}, notes=["note.json"])

    return Step(
        store,
        "thing",
        "shards",
        "code",
        recipe,
        build,
        **{"inputs": INPUTS, "recorded_only": frozenset({"decisions"}), **options},
    )


def other(inputs: Mapping[str, Input] = INPUTS, **changed: Input) -> dict[str, Input]:
    return {**inputs, **changed}


def test_what_is_made_is_found_and_says_what_it_was_made_from(any_store: Store) -> None:
    made: list[bytes] = []
    step = step_of(any_store, made=made)
    assert find_artifact(step) is None and find_published(step) is None
    first = make(step)
    assert not first.reused and make(step) == first.model_copy(update={"reused": True}) == find_published(step)
    assert made == [b"tokens"]
    manifest = read_manifest(any_store, step.key, "thing")
    assert manifest is not None
    assert (manifest.recipe, manifest.inputs, manifest.told) == (RECIPE, INPUTS, ["decisions"])
    assert first.key in held(any_store), "until a run says that it reads it"


def test_an_input_that_was_made_again_with_the_same_content_changes_no_name_and_another_content_does(
    any_store: Store,
) -> None:
    step = step_of(any_store)
    elsewhere = Input(key="tokenizers/bpe-2", content="same")
    assert step_of(any_store, inputs=other(tokenizer=elsewhere)).key == step.key
    assert step_of(any_store, inputs=other(tokenizer=Input(key="tokenizers/bpe-1", content="another"))).key != step.key
    assert step_of(any_store, inputs=other(decisions=Input(key="decisions/e", content="y"))).key == step.key, (
        "only told"
    )
    assert step_of(any_store, recipe={**RECIPE, "data.size": 4}).key != step.key


def test_content_is_that_of_all_files_but_the_notes(any_store: Store) -> None:
    made: list[bytes] = [b"before"]
    one = make(step_of(any_store))
    two = make(step_of(any_store, recipe={**RECIPE, "data.size": 4}, made=made))
    assert one.content == two.content and one.key != two.key
    assert one.content != make(step_of(any_store, b"other tokens", {**RECIPE, "data.size": 5})).content


@pytest.mark.parametrize("damaged", ["data.bin", MANIFEST])
def test_what_is_damaged_is_made_again(any_store: Store, damaged: str, caplog: pytest.LogCaptureFixture) -> None:
    step = step_of(any_store)
    key = make(step).key
    whole = any_store.read_bytes(f"{key}/data.bin")
    any_store.write_bytes(f"{key}/{damaged}", b"rotten")
    with caplog.at_level(logging.WARNING):
        assert not make(step).reused
    assert "rebuilding it" in caplog.text
    assert any_store.read_bytes(f"{key}/data.bin") == whole and find_artifact(step) is not None


def test_other_content_never_takes_the_place_of_what_was_damaged(any_store: Store) -> None:
    key = make(step_of(any_store)).key
    any_store.write_bytes(f"{key}/data.bin", b"rotten")
    with pytest.raises(ArtifactError, match="is damaged or lost, and rebuilding it gives other content"):
        make(step_of(any_store, b"of another version"))
    assert any_store.read_bytes(f"{key}/data.bin") == b"rotten"


def test_where_the_name_does_not_settle_the_content_what_was_made_from_it_does(any_store: Store) -> None:
    loose = {"fixes_content": False, "inputs": {}, "remedy": "choose another name"}
    key = make(step_of(any_store, **loose)).key
    any_store.delete(key)
    assert make(step_of(any_store, b"another", **loose)).key == key, "nothing was made from it"
    user = step_of(
        any_store, recipe={"format": 2}, inputs={"tokenizer": make(step_of(any_store, b"another", **loose)).as_input()}
    )
    made = make(user)
    any_store.delete(key)
    assert list(dependents_of(any_store, key)) == [made.key]
    with pytest.raises(ArtifactError, match=rf"it is needed by {made.key}\. Restore a copy .* or choose another name"):
        make(step_of(any_store, **loose))
    assert make(step_of(any_store, b"another", **loose)).key == key


def test_what_another_process_has_published_meanwhile_stays_as_it_is(any_store: Store) -> None:
    def build_beside(step: Step) -> Manifest:
        make(step_of(any_store))
        return step_of(any_store, made=[b"once", b"twice"]).build(step)

    raced = step_of(any_store)
    made = make(Step(**{**vars(raced), "build": build_beside}))
    assert any_store.read_bytes(f"{made.key}/note.json") == b"1"


def test_intact_content_of_another_process_is_taken_though_it_differs(any_store: Store) -> None:
    def build_beside(step: Step) -> Manifest:
        make(step_of(any_store, b"of the other one"))
        return step_of(any_store).build(step)

    made = make(Step(**{**vars(step_of(any_store)), "build": build_beside}))
    assert any_store.read_bytes(f"{made.key}/data.bin") == b"of the other one"


def test_what_was_needed_and_is_recorded_nowhere_is_refused_before_it_is_made(any_store: Store) -> None:
    loose = step_of(any_store, fixes_content=False, inputs={})
    any_store.write_bytes(f"shards/user-{'0' * 16}/{MANIFEST}", f'{{"inputs": "{loose.key}"'.encode())
    with pytest.raises(ArtifactError, match=r"no readable record of its content exists; it is needed by shards/user-0"):
        _ = loose.expected


def test_predictions_need_no_look_at_what_was_made_from_them(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.records.steps.dependents_of", lambda store, key: pytest.fail("nothing can be"))
    step = Step(**{**vars(step_of(any_store, fixes_content=False)), "folder": "predictions"})
    assert step.expected is None


def test_what_may_not_be_used_is_refused_and_not_made_anew(any_store: Store) -> None:
    def refuse(manifest: Manifest) -> None:
        raise ConfigError("too many bad records")

    made: list[bytes] = []
    make(step_of(any_store, made=made))
    step = step_of(any_store, made=made, accept=refuse)
    for look in (make, find_artifact, find_published):
        with pytest.raises(ConfigError, match="too many bad records"):
            look(step)
    assert made == [b"tokens"]
    assert status(step, "the thing")[0].verdict == "refused"


def test_what_was_begun_early_ends_whatever_becomes_of_it(any_store: Store) -> None:
    ended: list[int] = []
    release = lambda: ended.append(1)  # noqa: E731 - a field's value
    make(step_of(any_store, release=release))
    make(step_of(any_store, release=release))

    def fail(step: Step) -> Manifest:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        make(Step(any_store, "thing", "shards", "other", RECIPE, fail, release=release))
    assert ended == [1, 1, 1]


def test_the_most_similar_one_is_told_by_settings_inputs_and_files(any_store: Store) -> None:
    def looking(files: dict[str, str], before: dict[str, str]) -> Explains:
        return Explains(sources=lambda: files, recall_sources=lambda key, manifest: before)

    assert why(step_of(any_store)) == ["there is none yet"]
    make(step_of(any_store))
    assert why(step_of(any_store, recipe={**RECIPE, "data.size": 4})) == ["data.size: 3 -> 4"]
    elsewhere = other(tokenizer=Input(key="tokenizers/bpe-2", content="another"))
    assert why(step_of(any_store, inputs=elsewhere)) == ["the tokenizer: tokenizers/bpe-1 -> tokenizers/bpe-2"]
    grown = {**RECIPE, "contents": {"text": "b"}}
    explains = looking({"a.txt": "1", "b.txt": "3"}, {"a.txt": "1", "b.txt": "2", "c.txt": "4"})
    assert why(step_of(any_store, recipe=grown, explains=explains)) == ["files: 1 changed (b.txt), 1 removed (c.txt)"]
    renamed = looking({"new.txt": "1"}, {"old.txt": "1"})._replace(by_content=True)
    (reason,) = why(step_of(any_store, recipe=grown, explains=renamed))
    assert reason.endswith("built with other options that it does not record")


def test_a_manifest_whose_recipe_is_not_that_of_its_name_is_of_another_artifact(any_store: Store) -> None:
    key = make(step_of(any_store)).key
    manifest = read_manifest(any_store, key, "thing")
    assert manifest is not None
    write_manifest(any_store, key, manifest.model_copy(update={"kind": "shards", "recipe": {**RECIPE, "data.size": 9}}))
    with pytest.raises(ArtifactError, match="belongs to another shards"):
        read_manifest(any_store, key, "shards")
