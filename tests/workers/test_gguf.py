"""The header of a GGUF file, and ids recovered from bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ModelError
from tests.workers.gguf_files import write_gguf
from workers.gguf import Vocabulary, read_metadata
from workers.models import embedded_path

SPACE = "\u0120"


def test_metadata_and_vocabulary_of_a_small_file(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, ["a", "<|end|>", SPACE + "b", "\u00c3\u00a9"], [1, 3, 1, 1])
    metadata = read_metadata(path)
    vocabulary = Vocabulary.from_metadata(metadata)
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert vocabulary.pieces == [b"a", b"<|end|>", b" b", "é".encode()]
    assert (vocabulary.eos, vocabulary.bos, vocabulary.control_texts) == (1, -1, ("<|end|>",))
    assert vocabulary.text((0, 1, 2)) == "a b"
    assert (vocabulary.spell(1), vocabulary.spell(-1), len(vocabulary)) == ("<|end|>", "", 4)


def test_sentence_piece_vocabulary(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, ["<unk>", "</s>", "<0xF0>", "\u2581the"], [2, 3, 6, 1], model="llama", version=2)
    vocabulary = Vocabulary.from_metadata(read_metadata(path))
    assert vocabulary.pieces[2:] == [b"\xf0", b" the"]
    assert vocabulary.control == {0, 1}


def test_the_digest_depends_on_every_token_and_its_kind():
    one = Vocabulary([b"a", b"b"], ())
    assert one.digest == Vocabulary([b"a", b"b"], ()).digest
    assert len({one.digest, Vocabulary([b"b", b"a"], ()).digest, Vocabulary([b"a", b"b"], (1,)).digest}) == 3
    assert Vocabulary([b"ab", b"c"], ()).digest != Vocabulary([b"a", b"bc"], ()).digest


def test_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, ["a", "b"], [1, 1])
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(ModelError):
            read_metadata(path)
    path.write_bytes(b"GGUF\x09\x00\x00\x00" + whole[8:])
    with pytest.raises(ModelError, match="version 9"):
        read_metadata(path)
    path.write_bytes(whole[:24] + b"\xff" * 64)
    with pytest.raises(ModelError):
        read_metadata(path)
    with pytest.raises(ModelError, match="cannot be used"):
        Vocabulary.from_metadata({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]})
    with pytest.raises(ModelError):
        read_metadata(tmp_path / "absent")


BYTES = Vocabulary([bytes([n]) for n in range(256)] + [b"\xf0\x9f", b" \xf0\x9f", b"\x98\x80", b"ab"], (0,))


@given(ids=st.lists(st.integers(1, 259), min_size=1, max_size=8))
def test_a_segmentation_spells_the_bytes_with_that_many_ids(ids):
    text = BYTES.text_bytes(ids)
    found = BYTES.segment(text, len(ids), ids[-1])
    assert found is not None
    assert (len(found), BYTES.text_bytes(found), found[-1]) == (len(ids), text, ids[-1])


def test_what_cannot_be_segmented_is_said_so():
    smile = " 😀".encode()
    assert BYTES.segment(smile, 2, 258) == (257, 258)
    assert BYTES.segment(smile, 3, 258) == (32, 256, 258)
    assert BYTES.segment(smile, 5, 0x80) == (32, 0xF0, 0x9F, 0x98, 0x80)
    assert BYTES.segment(smile, 6, 0x80) is None
    assert BYTES.segment(smile, 1, 258) is None
    assert BYTES.segment(smile, 2, 5) is None
    assert Vocabulary([b"aa", b"b"], ()).segment(b"a" * 4001 + b"b", 600, 1) is None


def test_whole_characters():
    assert BYTES.whole(())
    assert BYTES.whole((257, 258))
    assert not BYTES.whole((257,))
    assert BYTES.id_of(b"ab") == 259
    assert BYTES.id_of(b"nothing") is None


def test_the_embedded_model_can_be_read():
    vocabulary = Vocabulary.from_metadata(read_metadata(embedded_path()))
    assert len(vocabulary) == 49152
    assert vocabulary.spell(vocabulary.eos) == "<|im_end|>"
    assert vocabulary.id_of(b" the") is not None
