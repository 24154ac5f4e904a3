"""Instruction tuning: conversations and a pretrained causal model to one that answers."""

from trainer.kinds.chat.identity import identify, plan
from trainer.kinds.chat.measurement import identify_own
from trainer.kinds.kind import Kind, Later

KIND = Kind(
    preflight=Later("trainer.kinds.chat.preflight.chat_preflight"),
    encode=Later("trainer.data.chat.encoded.encode_conversations"),
    identify=identify,
    open=Later("trainer.kinds.chat.workload.Chat"),
    plan=plan,
    measurement=identify_own,
    measure=Later("trainer.kinds.chat.evaluate.measure_answers"),
    report_content=Later("trainer.kinds.chat.page.describe_chat"),
    compared="trainer.kinds.chat.page.COMPARED",
)
