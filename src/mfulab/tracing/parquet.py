"""Reads what `nsys export --type parquetdir` writes: a folder with a Parquet file a table, of the
same columns as the SQLite export."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mfulab.tracing.nsys import Export, damaged_export
from mfulab.tracing.trace import Trace, TraceError, lacking

ENDING = ".parquet"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL.parquet"  # the file that stands for its folder
EXPORT = "nsys export --type parquetdir"
BATCH_ROWS = 1 << 16


class Folder:
    """Tables of a folder, read some rows at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = sorted(file.name.removesuffix(ENDING) for file in path.glob(f"*{ENDING}"))

    def columns(self, table: str) -> set[str]:
        """Names of a table's columns."""
        return set(self._file(table).schema_arrow.names)

    def rows(self, table: str, columns: Sequence[str]) -> Iterable[Sequence[Any]]:
        """Rows of a table's columns."""
        for batch in self._file(table).iter_batches(BATCH_ROWS, columns=list(columns)):
            held = [batch.column(name).to_pylist() for name in columns]
            yield from zip(*held, strict=True)

    def _file(self, table: str) -> Any:
        from pyarrow.parquet import ParquetFile

        return ParquetFile(self.path / f"{table}{ENDING}", memory_map=True)


def read(path: Path) -> list[Trace]:
    """Reads a folder, or that of a table's file. Raises TraceError: pyarrow is missing, a file is
    damaged, no CUDA activity."""
    folder = path if path.is_dir() else path.parent
    try:
        return Export(folder, Folder(folder)).traces()
    except ImportError:
        raise TraceError(folder, lacking("parquet_export", "pyarrow")) from None
    except (OSError, TypeError, ValueError, OverflowError) as error:  # pyarrow's errors are these
        raise TraceError(folder, damaged_export(error, EXPORT)) from None
