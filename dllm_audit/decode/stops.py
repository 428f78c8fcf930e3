"""Where an answer ends: at an end-of-text id, or at a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def special_ids(tokenizer: PreTrainedTokenizerBase | None) -> dict[int, str]:
    """The tokens that never show in text, by id: ends of text, padding, masks, marks of a chat. None without a tokenizer."""
    added = {} if tokenizer is None else tokenizer.added_tokens_decoder
    return {number: str(token) for number, token in added.items() if token.special}


class StopStrings:
    """The stop strings of one kind of request, as texts and ids: one that is a special token never shows in text, so it stops
    by its id.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, until: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        special = {text: number for number, text in special_ids(tokenizer).items() if text in until}
        self.texts = () if tokenizer is None else tuple(stop for stop in until if stop and stop not in special)
        self.ids = frozenset(special.values())
        self._lasts = {text[-1] for text in self.texts}
        self._completes: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.texts or self.ids)

    def close(self, ids: Sequence[int], fresh: int) -> bool:
        """Whether the answer `ids` holds a stop string, when it held none before its last `fresh` tokens came."""
        new = ids[-fresh:]
        if any(token in self.ids for token in new):
            return True
        # Few tokens can complete a stop string, so the text is seldom looked at; then whole, for what a tokenizer makes of a
        # part that begins inside a character is another text.
        if not any(self._may_complete(token) for token in new):
            return False
        text = self.decode(ids)
        return any(stop in text for stop in self.texts)

    def cut(self, ids: Sequence[int]) -> tuple[str, Sequence[int], bool]:
        """Text and ids before the first stop string, and whether there was one."""
        text = self.decode(ids)
        found = [at for at in (text.find(stop) for stop in self.texts) if at >= 0]
        if not found:
            return text, ids, False
        text = text[: min(found)]
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(self.decode(ids[:middle])) <= len(text) else (low, middle - 1)
        return text, ids[:low], True

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        assert self.tokenizer is not None
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _may_complete(self, token: int) -> bool:
        """Whether a stop string's last character can come from this token: it stands in the token's own text.

        A token alone shows a part of a character as a replacement, and may lose a space that it has among others.
        """
        if token not in self._completes:
            text = self.decode([token])
            self._completes[token] = (
                not self._lasts.isdisjoint(text)
                or any(last.isspace() and last != "\n" for last in self._lasts)
                or ("\N{REPLACEMENT CHARACTER}" in text and not all(map(str.isascii, self._lasts)))
            )
        return self._completes[token]
