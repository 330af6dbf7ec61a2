"""Reads the Parquet export of Nsight Systems (`nsys export --type parquetdir`): a folder with one
file per table, with the columns of the SQLite export."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mfulab.tracing.nsys import Export, damaged_export
from mfulab.tracing.trace import Trace, TraceError, lacking

ENDING = ".parquet"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL.parquet"  # a path to this file means its folder
EXPORT = "nsys export --type parquetdir"
BATCH_ROWS = 1 << 16


class Folder:
    """Tables of an export's folder, read in batches of rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = sorted(file.name.removesuffix(ENDING) for file in path.glob(f"*{ENDING}"))

    def columns(self, table: str) -> set[str]:
        """Names of a table's columns."""
        return set(self._file(table).schema_arrow.names)

    def rows(self, table: str, columns: Sequence[str]) -> Iterable[Sequence[Any]]:
        """Rows of a table's columns."""
        for batch in self._file(table).iter_batches(BATCH_ROWS, columns=list(columns)):
            values = [batch.column(name).to_pylist() for name in columns]
            yield from zip(*values, strict=True)

    def _file(self, table: str) -> Any:
        from pyarrow.parquet import ParquetFile

        return ParquetFile(self.path / f"{table}{ENDING}", memory_map=True)


def read(path: Path) -> list[Trace]:
    """Reads an export, given its folder or one of its files. Raises TraceError if pyarrow is
    missing, a file is damaged, or there is no CUDA activity."""
    folder = path if path.is_dir() else path.parent
    try:
        return Export(folder, Folder(folder)).traces()
    except ImportError:
        raise TraceError(folder, lacking("parquet_export", "pyarrow")) from None
    except (OSError, TypeError, ValueError, OverflowError) as error:  # pyarrow's errors are these
        raise TraceError(folder, damaged_export(error, EXPORT)) from None
