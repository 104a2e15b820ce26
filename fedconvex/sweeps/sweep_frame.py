"""The frame of a sweep: a row for every setting, seed and recorded round; how it is read, written and summed up."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._archives import arrays_in, json_of
from fedconvex._check import among, bad, text
from fedconvex._files import check_file, csv_text, npz, read_place, write_file
from fedconvex.driver import Status
from fedconvex.sweeps.answers_on_disk import read_about, read_answers

STATUSES = tuple(status.name for status in Status)
_FIRST = ("seed", "round", "value", "gap", "status", "floats_down", "floats_up")  # after the columns of the setting
_ARROW = 'have pyarrow to read and write .parquet: pip install "fedconvex[report]", or take .npz'


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """All traces of a sweep as one tidy frame.

    Attributes
    ----------
    columns : dict of str to array (n,)
        setting (its number), what tells settings apart, seed, round, value, gap, status (of the whole run of that
        seed: CONVERGED, ROUND_LIMIT, CYCLE, DIVERGED), floats_down, floats_up, and what methods add. A seed's rows end
        where it converged or diverged; there value and gap are infinite. Seconds are left out: they would differ
        between two sweeps. Also by name: ``found["gap"]``.
    parameters : tuple of str
        Names of the columns that tell settings apart.
    failures : list of dict
        setting (its columns), seeds (first, end) and error of every run that failed.
    about : dict
        Versions, methods, grid, digests of the problems, seeds, rounds, and all else that the frame depends on.
    finished : tuple of int
        Runs that are done, and all that were asked for.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, sweep
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), l2=0.1)
    >>> found = sweep(FedSGD(step_size=0.1), problem, grid={"step_size": [0.1, 0.2]}, rounds=2)
    >>> found["step_size"].tolist(), found["round"].tolist()
    ([0.1, 0.1, 0.1, 0.2, 0.2, 0.2], [0, 1, 2, 0, 1, 2])
    """

    columns: dict[str, np.ndarray]
    parameters: tuple[str, ...]
    failures: list[dict[str, Any]]
    about: dict[str, Any]
    finished: tuple[int, int]

    def __len__(self) -> int:
        return int(self.columns["setting"].size)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"the sweep has the columns {', '.join(self.columns)}; not {name!r}")
        return self.columns[name]

    def __repr__(self) -> str:
        settings, seeds = np.unique(self["setting"]).size, np.unique(self["seed"]).size
        words = f"{len(self)} rows: {settings} setting{'s' * (settings != 1)}, {seeds} seed{'s' * (seeds != 1)}"
        words += f", {len(self.failures)} failed" if self.failures else ""
        done, all_ = self.finished
        return f"Sweep({words}{f', {done} of {all_} runs so far' if done < all_ else ''})"

    # ------------------------------------------------------------------ parts
    def select(self, **wanted: Any) -> Sweep:
        """Return the rows in which columns have the values given, or one of a list of them.

        Raises
        ------
        ValueError
            If a column is none of the frame's.
        """
        keep = np.ones(len(self), dtype=bool)
        for name, value in wanted.items():
            among("Sweep.select: a column", name, list(self.columns))
            several = list(value) if isinstance(value, (list, tuple, range, np.ndarray)) else [value]
            column = self.columns[name]
            keep &= np.isin(column, [str(v) for v in several] if column.dtype.kind == "U" else several)
        return self._rows(keep)

    def final(self) -> Sweep:
        """Return the last row of every setting and seed."""
        setting, seed = self["setting"], self["seed"]
        last = np.ones(len(self), dtype=bool)
        last[:-1] = (setting[1:] != setting[:-1]) | (seed[1:] != seed[:-1])
        return self._rows(last)

    def _rows(self, keep: np.ndarray) -> Sweep:
        columns = {name: column[keep] for name, column in self.columns.items()}
        return Sweep(columns, self.parameters, self.failures, self.about, self.finished)

    def groups(self, *names: str) -> Iterator[tuple[dict[str, Any], Sweep]]:
        """Yield the rows of every combination of values of some columns, with these values, in the order of settings.

        Raises
        ------
        ValueError
            If a column is none of the frame's.
        """
        for name in names:
            among("Sweep.groups: a column", name, list(self.columns))
        codes = [np.unique(self.columns[n], return_inverse=True, equal_nan=True)[1] for n in names]
        code = np.stack(codes, axis=1) if codes else np.zeros((len(self), 1), dtype=int)
        _, first, which = np.unique(code, axis=0, return_index=True, return_inverse=True)
        for number in np.argsort(first, kind="stable"):
            i = int(first[number])
            yield {n: self.columns[n][i].item() for n in names}, self._rows(which.reshape(-1) == number)

    def best(self, over: str = "step_size", score: str = "gap") -> list[dict[str, Any]]:
        """Return the value of a parameter at which the median over the seeds ends lowest, for all others.

        Parameters
        ----------
        over : str
            The parameter that is chosen, a number or a text.
        score : str
            Column that is to be small in the last row of every seed.

        Returns
        -------
        list of dict
            One for every combination of the other parameters: these, the chosen value, median, first and ninth decile
            of the score, number of seeds, and ``edge``, whether the value is the least or largest number that was
            tried: the best one may then lie beyond.

        Raises
        ------
        ValueError
            If there is no such parameter, or no such column of numbers.
        """
        among("Sweep.best: over", over, self.parameters)
        among("Sweep.best: score", score, [n for n, c in self.columns.items() if c.dtype.kind in "if"])
        found = []
        for others, part in self.final().groups(*(p for p in self.parameters if p != over)):
            tried = [(*deciles(rows[score]), value[over], len(rows)) for value, rows in part.groups(over)]
            median, low, high, value, seeds = min(tried, key=lambda t: t[0])
            numbers = [t[3] for t in tried]
            edge = not isinstance(value, str) and len(numbers) > 1 and value in (min(numbers), max(numbers))
            row = {over: value, "median": median, "low": low, "high": high, "seeds": seeds, "edge": edge}
            found.append(others | row)
        return found

    # ------------------------------------------------------------------ elsewhere
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the frame: .parquet (with pyarrow) or .npz with all metadata, .csv the columns only.

        Equal frames give equal files.

        Raises
        ------
        ValueError, TypeError
            If the file cannot be written, or has another suffix.
        ImportError
            If pyarrow is missing for .parquet.
        """
        file = check_file("Sweep.save: path", path)
        kinds = {".parquet": _parquet, ".npz": _npz, ".csv": _csv}
        if file.suffix.lower() not in kinds:
            raise bad("Sweep.save: path", "end in .parquet, .npz or .csv", file.name)
        write_file(file, kinds[file.suffix.lower()](self))

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame.

        Raises
        ------
        ImportError
            If pandas is missing.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError('Sweep.to_pandas must have pandas: pip install "fedconvex[frames]"') from error
        return pandas.DataFrame(self.columns)


def deciles(x: np.ndarray) -> tuple[Any, Any, Any]:
    """Return median, first and ninth decile along the first axis; what is not a number counts as infinite.

    The median of an even number is the mean of the middle two; deciles are the nearest of the values that occur.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.sweeps.sweep_frame import deciles
    >>> deciles(np.array([3.0, 1.0, np.nan, 2.0]))
    (2.5, 1.0, inf)
    """
    shown = np.where(np.isnan(x), np.inf, x.astype(float))
    with np.errstate(over="ignore"):  # of two numbers near the largest one the mean counts as infinite
        median = np.median(shown, axis=0)
    low, high = np.quantile(shown, [0.1, 0.9], axis=0, method="nearest")
    return median.tolist(), low.tolist(), high.tolist()


# ---------------------------------------------------------------- from parts


def frame_of(folder: Path) -> Sweep:
    """Return what the folder of a sweep holds so far."""
    about = read_about(folder)
    if not {"settings", "columns", "runs"} <= about.keys():
        raise bad(f"{folder}", "be the folder of a sweep", f"that of {', '.join(about)}")
    found = list(read_answers(folder))
    try:
        return _assembled(about, found)
    except Exception as error:  # whatever a damaged or foreign file makes of it
        got = f"damaged or foreign files ({type(error).__name__}: {error})"
        raise bad(f"{folder}", "be the folder of a sweep", got, "delete it and sweep again") from None


def _assembled(about: dict[str, Any], found: Sequence[tuple[int, Mapping[str, np.ndarray] | str]]) -> Sweep:
    """Return the frame of what a sweep says of itself and of its answers, by the number of the run."""
    answers: list[Mapping[str, np.ndarray]] = []
    failures = []
    for i, answer in found:
        if not isinstance(answer, str):
            answers.append(answer)
            continue
        setting, first, end = about["runs"][i]
        failures.append({"setting": about["settings"][setting], "seeds": [first, end], "error": answer})
    names = list(dict.fromkeys(name for answer in answers for name in answer))
    setting = _joined([a["setting"] for a in answers], int)
    columns = {"setting": setting}
    for name in about["columns"]:
        columns[name] = _labels([labels[name] for labels in about["settings"]])[setting]
    for name in (*_FIRST, *(n for n in names if n not in ("setting", *_FIRST))):
        parts = [a.get(name, np.full(a["setting"].size, np.nan)) for a in answers]
        columns[name] = _joined(parts, float)
    columns["status"] = np.array(STATUSES)[columns["status"].astype(int)]
    return Sweep(columns, tuple(about["columns"]), failures, about, (len(found), len(about["runs"])))


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)


def _labels(labels: list[Any]) -> np.ndarray:
    """Return a column: whole numbers, numbers (NaN where there is none), or texts (empty where there is none)."""
    known = [v for v in labels if v is not None]
    if all(isinstance(v, int) for v in labels):
        return np.array(labels, dtype=np.int64)
    if all(isinstance(v, (int, float)) for v in known):
        return np.array([np.nan if v is None else float(v) for v in labels])
    return np.array(["" if v is None else str(v) for v in labels])


# ---------------------------------------------------------------- files


def read_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Return a sweep from a file that `Sweep.save` wrote, or from the folder of one that may still be running.

    Parameters
    ----------
    path : path
        The file (.parquet, .npz), or the folder.

    Raises
    ------
    ValueError, TypeError
        If it holds none, or is damaged, or is a CSV file, which has no metadata.
    ImportError
        If pyarrow is missing for .parquet.

    Examples
    --------
    >>> import tempfile
    >>> from fedconvex import FedSGD, Problem, Squared, sweep
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.sweeps import read_sweep
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), l2=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sweep(FedSGD(step_size=0.1), problem, rounds=2, folder=f"{folder}/mine")
    ...     read_sweep(f"{folder}/mine")
    Sweep(3 rows: 1 setting, 1 seed)
    """
    place = read_place("read_sweep: path", path)
    if place.is_dir():
        return frame_of(place)
    if not place.is_file():
        raise bad("read_sweep: path", "be a folder or file of a sweep", f"{place}, which does not exist")
    readers = {".parquet": _from_parquet, ".npz": _from_npz}
    if place.suffix.lower() not in readers:
        raise bad("read_sweep: path", "be a folder, .parquet or .npz (.csv has no metadata)", place.name)
    try:
        columns, told = readers[place.suffix.lower()](place)
        about = json_of(told)
        return Sweep(columns, tuple(about["columns"]), about.pop("failures"), about, tuple(about.pop("finished")))
    except ImportError:
        raise
    except Exception as error:  # whatever a damaged or foreign file makes its readers raise
        got = f"a damaged or foreign file ({type(error).__name__}: {error})"
        raise bad(f"read_sweep: {place}", "be a file that Sweep.save wrote", got) from None


def _told(found: Sweep) -> bytes:
    """Return the metadata of a frame as JSON."""
    return json.dumps(found.about | {"failures": found.failures, "finished": list(found.finished)}).encode()


def _npz(found: Sweep) -> bytes:
    about = {"about": np.frombuffer(_told(found), dtype=np.uint8)}
    return npz(about | {f"column/{name}": column for name, column in found.columns.items()})


def _from_npz(file: Path) -> tuple[dict[str, np.ndarray], bytes]:
    arrays = arrays_in(file)
    told = arrays.pop("about").tobytes()
    return {text("name", name).removeprefix("column/"): a for name, a in arrays.items()}, told


def _csv(found: Sweep) -> bytes:
    rows = zip(*(column.tolist() for column in found.columns.values()), strict=True)
    return csv_text([list(found.columns), *rows]).encode()


def _parquet(found: Sweep) -> bytes:
    pa, parquet = pyarrow()
    arrays = [pa.array(c.tolist() if c.dtype.kind == "U" else c) for c in found.columns.values()]
    arrays = [a.dictionary_encode() if pa.types.is_string(a.type) else a for a in arrays]
    table = pa.Table.from_arrays(arrays, names=list(found.columns)).replace_schema_metadata({"fedconvex": _told(found)})
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def _from_parquet(file: Path) -> tuple[dict[str, np.ndarray], bytes]:
    _, parquet = pyarrow()
    table = parquet.read_table(file)
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        a = column.to_numpy()
        columns[name] = a.astype(str) if a.dtype.kind == "O" else a
    return columns, table.schema.metadata[b"fedconvex"]


def pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its module of Parquet files.

    Raises
    ------
    ImportError
        If they are missing.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f"a sweep must {_ARROW}") from error
    return pa, parquet
