"""Files that anybody may have made: what is opened, and how much of it is read."""

import os

import pytest
import yaml

from dpfbo.formats.bounded import check_yaml, read_plain, read_yaml
from dpfbo.formats.files import NoFile, check_plain, open_file


def written(tmp_path, text):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return path


def test_a_plain_text_is_what_the_reader_makes_of_it(tmp_path):
    text = yaml.safe_dump({"a": [1, {"b": None}], "c": "1e-3"})
    assert read_yaml(written(tmp_path, text)) == yaml.safe_load(text)
    assert read_yaml(written(tmp_path, "")) is None
    assert read_yaml(written(tmp_path, "a: &one [1, 2]\nb: *one\n")) == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 101 + "]" * 101, "must not nest its values more than 100 deep"),
        ("{a: " * 5000 + "1" + "}" * 5000, "must not nest its values more than 100 deep"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 10)),
            "must hold at most 100000 values",
        ),
        ("a: &a [1, *a]\n", "must hold at most 100000 values"),
    ],
)
@pytest.mark.parametrize("read", [read_yaml, check_yaml])
def test_what_would_crash_or_fill_the_memory_is_refused(read, text, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        read(written(tmp_path, text))


def test_what_is_no_yaml_is_left_to_its_reader(tmp_path):
    path = written(tmp_path, "a: [")
    check_yaml(path)
    with pytest.raises(yaml.YAMLError):
        read_yaml(path)


@pytest.mark.parametrize("error", [ValueError, OSError, NoFile])
def test_a_pipe_and_a_folder_are_not_opened(tmp_path, error):
    os.mkfifo(tmp_path / "pipe")
    for path, got in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe")):
        for act in (check_plain, read_plain, read_yaml, lambda path: open_file(path, "rb")):
            with pytest.raises(error, match=f"must be a plain file, got {got}"):
                act(path)
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "none")


def test_no_more_than_the_bound_is_read(tmp_path):
    path = written(tmp_path, "12345")
    assert read_plain(path, 5) == b"12345"
    with pytest.raises(ValueError, match="must hold at most 4 bytes, got 5"):
        read_plain(path, 4)
