"""Fine-tuning: labelled data and a pretrained model to one that classifies, or predicts a number."""

from trainer.kinds.kind import Kind, Later
from trainer.kinds.labelled.identity import identify, plan
from trainer.kinds.labelled.measurement import identify_checkpoint, identify_own

KIND = Kind(
    preflight=Later("trainer.kinds.labelled.preflight.labelled_preflight"),
    encode=Later("trainer.data.labelled.encoding.encode"),
    identify=identify,
    open=Later("trainer.kinds.labelled.workload.Finetuning"),
    plan=plan,
    measurement=identify_own,
    measure=Later("trainer.kinds.labelled.evaluate.measure_labelled"),
    checkpoint=identify_checkpoint,
    report_content=Later("trainer.kinds.labelled.page.describe_finetuning"),
    compared="trainer.kinds.labelled.page.COMPARED",
)
