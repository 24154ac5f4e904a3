"""What a tokenizer puts around texts, and how texts are cut so that they fit with it."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models


class Frame(NamedTuple):
    """The special tokens before, between and after one text or the two of a pair; their types, and those of the texts."""

    tokens: tuple[NDArray[np.int32], ...]
    types: tuple[NDArray[np.int8], ...]
    text_types: tuple[int, ...]

    @property
    def size(self) -> int:
        """Tokens that are added to the texts."""
        return sum(map(len, self.tokens))

    @property
    def divides(self) -> bool:
        """Whether anything stands between the texts of a pair."""
        return len(self.tokens[1]) > 0


def find_frame(backend: Tokenizer, members: int) -> Frame:
    """The frame of one text, or of a pair (`members` 2), found by encoding a text of few tokens."""
    text = next((each for each in ("a", *backend.get_vocab(True)) if backend.encode(each, add_special_tokens=False).ids), "a")
    probe = backend.encode(text, text if members == 2 else None)
    ids, types = np.array(probe.ids, dtype=np.int32), np.array(probe.type_ids, dtype=np.int8)
    spans, kinds, end = [], [], 0
    for member in range(members):
        places = [place for place, owner in enumerate(probe.sequence_ids) if owner == member] or [end]
        spans.append(slice(end, places[0]))
        kinds.append(int(types[places[0]]) if places[0] < len(types) else 0)
        end = places[-1] + 1
    spans += [slice(end, end)] * (2 - members) + [slice(end, None)]
    return Frame(tuple(ids[span] for span in spans), tuple(types[span] for span in spans), tuple(kinds))


def put_between(backend: Tokenizer, token: str) -> None:
    """Have a tokenizer put a token between the texts of a pair, besides what it puts around them."""
    present = json.loads(backend.post_processor.__getstate__()) if backend.post_processor is not None else None
    processors = [] if present is None else present["processors"] if present["type"] == "Sequence" else [present]
    template = next((each for each in processors if each["type"] == "TemplateProcessing"), None)
    if template is None:
        first, second = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
        template = {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}
        processors.append(template)
    place = next(place for place, piece in enumerate(template["pair"]) if piece.get("Sequence", {}).get("id") == "B")
    template["pair"].insert(place, {"SpecialToken": {"id": token, "type_id": 0}})
    template["special_tokens"][token] = {"id": token, "ids": [backend.token_to_id(token)], "tokens": [token]}
    whole = processors[0] if len(processors) == 1 else {"type": "Sequence", "processors": processors}
    # A post-processor can be made from JSON only as a part of a tokenizer.
    bearer = json.loads(Tokenizer(models.WordLevel({}, unk_token="")).to_str())
    backend.post_processor = Tokenizer.from_str(json.dumps({**bearer, "post_processor": whole})).post_processor


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of one text, or of the two of a pair, are kept: the longer text is cut first, then both alike.

    The same as the strategy `longest_first` of the `tokenizers` library.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    short = min(*lengths, room // 2)
    return [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]
