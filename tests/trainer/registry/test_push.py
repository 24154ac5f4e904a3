"""A finished model on a hub: all of its files in one commit, or one line that says why not."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_writing import TOKEN, Hub, taking_commits
from tests.trainer.small_jobs import Finished
from trainer.registry.promotion import promote
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.identity import final_manifest


@pytest.fixture(scope="module")
def reported(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The finished run with its report, the champion of `lm`; not to be written to."""
    store = Path(shutil.copytree(finished.store, tmp_path_factory.mktemp("reported") / "store"))
    make_report(Store(str(store)), finished.run)
    promote(Store(str(store)), "lm", finished.run, {}, "by hand")
    return Finished(store, finished.run)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with taking_commits() as served:
        yield served


def environment(run: Finished, hub: str) -> dict[str, str]:
    """The variables with which a process knows this hub alone."""
    home = str(run.store.parent / "home")
    return {"HF_ENDPOINT": hub, "HF_HOME": home, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}


def push(
    run: Finished, hub: str, repo: str, *words: str, token: str = TOKEN, model: str = "lm"
) -> subprocess.CompletedProcess[str]:
    """`headrace push` in a process of its own, which knows this hub alone."""
    told = {**environment(run, hub), "HF_TOKEN": token}
    command = [sys.executable, "-m", "flows.command", "push", str(run.store), model, repo, *words]
    return subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, timeout=120)


def published(run: Finished) -> dict[str, bytes]:
    """The files of the final model, by name."""
    manifest = final_manifest(Store(str(run.store)), run.run)
    assert manifest is not None
    return {file.name: (run.store / run.run / "final" / file.name).read_bytes() for file in manifest.files}


def test_a_champion_is_sent_with_its_card_in_one_commit_and_can_be_sent_again(reported: Finished, hub: Hub) -> None:
    ended = push(reported, hub.url, "me/model", "--private")
    assert ended.returncode == 0, ended.stderr
    assert hub.repos["me/model"] == published(reported) and "README.md" in hub.repos["me/model"]
    assert hub.private == {"me/model"} and hub.objects, "weights come by LFS"
    assert f"sent: {hub.url}/me/model/commit/" in ended.stdout
    again = push(reported, hub.url, "me/model", model=reported.run)
    assert again.returncode == 0 and len(hub.messages) == 2 and hub.repos["me/model"] == published(reported)


def test_files_of_the_model_that_was_there_before_are_taken_out_and_others_stay(reported: Finished, hub: Hub) -> None:
    own = {".gitattributes": b"", "LICENSE": b"", "notes.txt": b"", "figure.png": b""}
    former = {"adapter_config.json": b"{}", "model-00001-of-00002.safetensors": b"", "chat_template.jinja": b""}
    hub.repos["me/model"] = {**own, **former, "config.json": b"{}"}
    ended = push(reported, hub.url, "me/model", "--json")
    assert ended.returncode == 0, ended.stderr
    assert hub.repos["me/model"] == {**own, **published(reported)} and len(hub.messages) == 1
    assert sorted(json.loads(ended.stdout)["removed"]) == sorted(former)


def test_a_dry_run_shows_the_files_and_asks_no_hub(reported: Finished) -> None:
    ended = push(reported, "http://127.0.0.1:9", "me/model", "--dry-run", token="")
    assert ended.returncode == 0, ended.stderr
    assert all(name in ended.stdout for name in published(reported)) and "would be sent to me/model" in ended.stdout


def test_a_hub_that_is_away_is_told_in_one_line(reported: Finished) -> None:
    away = "http://127.0.0.1:9"
    ended = push(reported, away, "me/model")
    assert (ended.returncode, f"{away} cannot be reached" in ended.stderr) == (75, True), ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


EACH = """
import json, os, sys
from flows.command import main
for token, words in json.loads(sys.argv[1]):
    os.environ["HF_TOKEN"] = token
    try:
        main(["push", *words])
    except SystemExit as end:
        print(end.code, flush=True)
"""
"""Models that are sent one after the other by one process; prints the statuses."""

CASES = [
    (2, "no token for the Hugging Face hub", {"token": ""}),
    (2, "refuses 'you/model' (status 403)", {"repo": "you/model"}),
    (2, "refuses 'me/model' (status 401)", {"token": "hf_wrong"}),
    (2, "'a/b/c' is not a repository name", {"repo": "a/b/c"}),
    (2, "'model' has no owner; expected OWNER/NAME", {"repo": "model"}),
    (2, "holds no model 'nobody'", {"model": "nobody"}),
    (75, "reports a temporary error (status 503)", {}),
    (75, "reports a temporary error (status 429)", {}),
    (2, '- "license" must be one of [mit]; to change the card, edit `card` in the job', {}),
    (75, "does not answer as a hub (", {}),
]


def test_what_hinders_it_is_told_in_one_line(reported: Finished, hub: Hub) -> None:
    hub.trouble = [503, 429]
    refused = json.dumps({"errors": [{"message": '"license" must be one of [mit]'}], "warnings": []})
    taken = (200, b'{"errors": [], "warnings": []}')
    hub.of_cards = [taken, taken, (400, refused.encode()), (503, b"<html>")]
    each = [{"token": TOKEN, "model": "lm", "repo": "me/model", **changes} for _, _, changes in CASES]
    words = json.dumps([(one["token"], (str(reported.store), one["model"], one["repo"])) for one in each])
    env = {**os.environ, **environment(reported, hub.url)}
    ended = subprocess.run([sys.executable, "-c", EACH, words], env=env, capture_output=True, text=True, timeout=120)
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    assert len(lines) == len(CASES), ended.stderr
    for (_, message, changes), line in zip(CASES, lines, strict=True):
        assert message in line, changes
    assert [int(status) for status in ended.stdout.split()] == [status for status, _, _ in CASES], ended
    assert not any(hub.repos.values()), "of a commit that is refused nothing is there"
