"""Rows that are lines of tables: `CsvDataset`, and what Keras's tutorials make of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.data import Dataset
from tensorflow.data.experimental import CsvDataset, make_csv_dataset

from fdt.capture.rows import RowNumbers
from fdt.program import record_index
from tests.capture.test_records import check_same

TABLES = (b"a,b,c\r\n1,2.5,3\r\n4,,6\r\n7,1e3,9", b"a,b,c\n", b'a,b,c\n"10",11,NA\n13,"14.5",15\n')


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number} ä.csv" for number in range(len(TABLES))]
    for path, content in zip(paths, TABLES, strict=True):
        path.write_bytes(content)
    return [str(path) for path in paths]


def joined(*fields: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.cast(field, tf.float64) for field in fields])


def made_by_name(files: list[str], **options: Any) -> Dataset:
    return make_csv_dataset(files, 2, label_name="c", na_value="NA", num_rows_for_inference=5, **options)


FORMS: dict[str, Callable[[list[str]], Dataset]] = {
    "one after the other": lambda files: CsvDataset(files, [0, 0.5, -1], header=True, na_value="NA").batch(2),
    "of one file": lambda files: CsvDataset(files[0], [tf.int32, 0.5, 70], header=True).map(joined).batch(2),
    "shuffled": lambda files: (
        CsvDataset(files, [0.0, -1], header=True, na_value="NA", select_cols=[1, 2]).shuffle(4, seed=3).batch(2)
    ),
    "in turn": lambda files: (
        Dataset.from_tensor_slices(files)
        .interleave(lambda file: CsvDataset(file, [0, 0.5, -1], header=True, na_value="NA"), cycle_length=2)
        .map(joined)
        .batch(2)
    ),
    "by columns": lambda files: made_by_name(files, num_epochs=1, shuffle=False),
    "by columns, shuffled": lambda files: made_by_name(files, num_epochs=1, shuffle_seed=3, shuffle_buffer_size=4),
}


@pytest.mark.parametrize("name", FORMS)
def test_rows_come_in_the_order_of_the_data_set(name: str, tables: list[str], row_numbers: RowNumbers) -> None:
    check_same(row_numbers, lambda: FORMS[name](tables))


def test_tables_have_delimiters_of_their_own(tmp_path: Path, row_numbers: RowNumbers) -> None:
    path = tmp_path / "table"
    path.write_bytes(b'1;2\n3;4\n"5";6\n')
    check_same(row_numbers, lambda: CsvDataset(str(path), [0, 0], field_delim=";").batch(2))
    path.write_bytes(b'1;"2\n3;4"\n')
    with_quotes = CsvDataset(str(path), ["", ""], field_delim=";", use_quote_delim=False)
    check_same(row_numbers, lambda: with_quotes.map(lambda a, b: tf.strings.length([a, b])).batch(2))


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'1,"2\n3"\n', "go over several lines"),
        (b"1,2\r3\n", "carriage returns within lines"),
        (b'"1","2"\r\n3,"4,"\r\n', ""),
    ],
)
def test_fields_that_are_not_within_a_line_are_left_to_the_script(
    content: bytes, why: str, chunk: int, tmp_path: Path, row_numbers: RowNumbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_index, "_CHUNK_BYTES", chunk)
    path = tmp_path / "table"
    path.write_bytes(content)
    data = CsvDataset(str(path), ["", ""]).map(lambda a, b: tf.strings.length([a, b])).batch(2)
    assert (row_numbers.of_files(data) is None) == bool(why)
    assert why in row_numbers.reason
