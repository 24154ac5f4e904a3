"""The look at a preference-tuning job before long work starts."""

from functools import partial

from trainer.kinds.conversations_preflight import look_at_conversations
from trainer.kinds.preference.job import PREFERENCE_FIGURES
from trainer.kinds.preference.pairs import PAIR

preference_preflight = partial(look_at_conversations, figures=list(PREFERENCE_FIGURES), form=PAIR, rows=2)
