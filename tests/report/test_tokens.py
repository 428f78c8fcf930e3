import pytest

from dllm_audit.models.tiny import EMBEDDED_MODELS
from dllm_audit.report.tokens import token_texts


def test_tokens_of_an_embedded_model_have_their_texts():
    file = EMBEDDED_MODELS["tiny-ar"] / "tokenizer.json"
    if not file.is_file():
        pytest.skip("The embedded model tiny-ar is not in this checkout.")
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(file)).encode(" 57 coins", add_special_tokens=False).ids
    assert "".join(token_texts()({"model": "tiny-ar"}, ids)) == " 57 coins"


@pytest.mark.parametrize("ref", ["no/such-model", "../../etc/passwd", "", "\x00"])
def test_a_model_that_is_not_at_hand_gives_no_texts(ref):
    assert token_texts()({"model": ref}, [1, 2]) is None


def test_a_broken_tokenizer_file_gives_no_texts(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    assert token_texts()({"model": str(tmp_path)}, [1, 2]) is None
