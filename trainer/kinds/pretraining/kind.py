"""Pretraining: corpora, mixed, to a causal or masked language model."""

from trainer.kinds.kind import Kind, Later
from trainer.kinds.pretraining.measurement import identify_own, identify_text
from trainer.kinds.pretraining.prepare import identify, plan, prepare

KIND = Kind(
    preflight=Later("trainer.kinds.pretraining.preflight.preflight"),
    prepare=lambda job, do: prepare(job.preparation(), do),
    identify=identify,
    open=Later("trainer.kinds.pretraining.workload.open_workload"),
    plan=plan,
    measurement=identify_own,
    measure=Later("trainer.kinds.pretraining.evaluate.measure_text"),
    checkpoint=identify_text,
    report_content=Later("trainer.kinds.pretraining.page.describe_pretraining"),
    compared="trainer.kinds.pretraining.page.COMPARED",
    is_light=True,
)
