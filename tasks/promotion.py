"""The gate after the evaluation: whether a trained model becomes the champion under a name."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from uuid import UUID, uuid4

from prefect import pause_flow_run
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.exceptions import Abort
from prefect.runtime import flow_run

from tasks import OWN_SERVER
from tasks.patience import patient, patient_task
from tasks.showing import TaskLogger
from trainer.config.runs import PromotionConfig
from trainer.records.evaluations import Result
from trainer.records.lease import LONG, LONGEST, holding
from trainer.records.results import Remeasured, Verdict
from trainer.registry.gate import ALREADY, Basis, unapproved
from trainer.registry.promotion import champion_to_measure, key_of, look, pass_through, remeasure
from trainer.store.storage import Store

GATE_NOT_MET = "headrace.gate-not-met"
"""The event that automations can react to, with the resource headrace.model.NAME."""

APPROVAL_SECONDS = int(LONG.total_seconds())


def consider(
    gate: PromotionConfig | None,
    store: str,
    run: str,
    evaluation: Result,
    measure: Callable[[str], Result],
) -> Verdict | None:
    """Judge a run's model; make it the champion if it passes and, if the gate requires it, a person approves.

    `measure` evaluates the champion's model on this run's data if its own scores are of other data. Call this in a
    flow, which pauses for the approval. None if the job has no gate.
    """
    if gate is None:
        return None
    champion = patient(champion_to_measure)(Store(store), gate, run, evaluation.measured_on)
    remeasured = None if champion is None else remeasure(champion, lambda: measure(champion.run))
    found = (evaluation.figures(), evaluation.measured_on, remeasured)
    # A lease keeps garbage collection from deleting the run while it waits for a person.
    with holding(Store(store), run, LONGEST) if gate.approval else nullcontext():
        verdict = judge_model(gate, store, run, *found)
        if not verdict.passed or verdict.reason == ALREADY:
            return verdict
        if gate.approval and os.environ.get(OWN_SERVER):
            refused = unapproved(verdict)
            show_verdict(refused, gate, store, run)
            return refused
        if gate.approval:
            wait_for_approval()
        return crown(gate, store, run, *found)


def wait_for_approval() -> None:
    """Pause the flow until a person resumes it.

    The pause has a unique key. Prefect's default key counts the pauses of a process, so the server would treat the
    pause of a restarted run as already over. Raises Prefect's `Abort`, which does not change the run's state, if the
    run was restarted while this process waited: then the restart ended the pause, not a person.
    """
    key = str(uuid4())
    pause_flow_run(timeout=APPROVAL_SECONDS, key=key)
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(UUID(flow_run.id))
    pause = next(number for number, state in enumerate(states) if state.state_details.pause_key == key)
    if any(not state.is_running() for state in states[pause + 1 :]):
        raise Abort("this run was restarted elsewhere while waiting for approval here; the new start asks for approval")


@patient_task("judge")
def judge_model(
    gate: PromotionConfig,
    store: str,
    run: str,
    scores: dict[str, float],
    measured_on: Basis,
    remeasured: Remeasured | None,
) -> Verdict:
    """Compare a model with the gate and the champion."""
    verdict = look(Store(store), gate, run, scores, measured_on, remeasured)
    show_verdict(verdict, gate, store, run)
    return verdict


@patient_task("promote")
def crown(
    gate: PromotionConfig,
    store: str,
    run: str,
    scores: dict[str, float],
    measured_on: Basis,
    remeasured: Remeasured | None,
) -> Verdict:
    """Make a run's model the champion, unless it does not beat a champion promoted in the meantime."""
    verdict = pass_through(Store(store), gate, run, scores, measured_on, remeasured)
    if verdict.passed:
        TaskLogger().info("%s is the champion of %s", run, Store(store).path(key_of(gate.name)))
    else:
        show_verdict(verdict, gate, store, run)
    return verdict


def show_verdict(verdict: Verdict, gate: PromotionConfig, store: str, run: str) -> None:
    """Show the gate's verdict; emit an event for automations if the gate is not met."""
    outcome = "passed" if verdict.passed else "not met"
    create_markdown_artifact(
        f"**Gate {outcome}:** {verdict.reason}", key="gate", description=f"{run} for models/{gate.name}"
    )
    if verdict.passed:
        TaskLogger().info("gate passed: %s", verdict.reason)
    else:
        TaskLogger().warning("gate not met, the champion of models/%s stays: %s", gate.name, verdict.reason)
        emit_event(
            GATE_NOT_MET,
            resource={"prefect.resource.id": f"headrace.model.{gate.name}"},
            payload={"run": run, "store": store, "reason": verdict.reason},
        )
