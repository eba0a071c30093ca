"""A parquet table as rows of text, with the bounds of the CSV reader. Needs pyarrow (extra ``calibrate``)."""

from __future__ import annotations

from pathlib import Path

from trilemma.errors import InputError, shorten


def parquet_cells(path: Path, *, most_rows: int, most_columns: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Column names, and the cells of every row as text ("" for null).

    Raises `InputError` for a file that is no parquet, nested, or larger than the bounds.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("reading a parquet table needs pyarrow: pip install 'trilemma[calibrate]'") from None
    shown = shorten(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such file; give a measured table")
    try:
        metadata = pq.read_metadata(path)
        if metadata.num_rows > most_rows or metadata.num_columns > most_columns:
            raise InputError(f"{shown}: more than {most_rows:,} rows or {most_columns:,} columns; split the table")
        table = pq.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{shown}: cannot be read as parquet: {shorten(str(error), most=120)}") from None
    columns = [
        ["" if value is None else str(value) for value in table.column(at).to_pylist()]
        for at in range(table.num_columns)
    ]
    return tuple(table.column_names), list(zip(*columns, strict=True))
