"""Preference tuning: pairs of answers and a causal language model to one that gives the better ones."""

from trainer.kinds.kind import Kind, Later
from trainer.kinds.preference.prepare import identify, identify_own, plan, prepare

KIND = Kind(
    preflight=Later("trainer.kinds.preference.preflight.preference_preflight"),
    prepare=prepare,
    encode=Later("trainer.kinds.preference.encoding.encode"),
    identify=identify,
    open=Later("trainer.kinds.preference.workload.Preference"),
    plan=plan,
    measurement=identify_own,
    measure=Later("trainer.kinds.preference.evaluate.measure_preferences"),
    report_content=Later("trainer.kinds.preference.page.describe_preferences"),
    compared="trainer.kinds.preference.page.COMPARED",
)
