"""Files that anybody may have made: what is opened, and how much of it is read."""

import os

import pytest
import yaml

from analysis.plain_files import check_plain, plain_bytes, plain_yaml


def test_a_plain_text_is_what_the_reader_makes_of_it():
    text = yaml.safe_dump({"a": [1, {"b": None}], "c": "1e-3"})
    assert plain_yaml(text) == yaml.safe_load(text)
    assert plain_yaml("") is None
    assert plain_yaml("a: &one [1, 2]\nb: *one\n") == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 101 + "]" * 101, "must not be nested more than 100 deep"),
        ("{a: " * 5000 + "1" + "}" * 5000, "must not be nested more than 100 deep"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 10)),
            "must hold at most 100000 values",
        ),
        ("a: &a [1, *a]\n", "must hold at most 100000 values"),
    ],
)
def test_what_would_crash_or_fill_the_memory_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        plain_yaml(text)


def test_a_pipe_and_a_folder_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="must be a plain file"):
            check_plain(path)
        with pytest.raises(ValueError, match="must be a plain file"):
            plain_bytes(path)
    with pytest.raises(FileNotFoundError):
        plain_bytes(tmp_path / "none")
