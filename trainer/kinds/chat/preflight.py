"""The look at an instruction-tuning job before long work starts."""

from functools import partial

from trainer.config.chat import CHAT_FIGURES
from trainer.kinds.conversations_preflight import look_at_conversations

chat_preflight = partial(look_at_conversations, figures=list(CHAT_FIGURES))
