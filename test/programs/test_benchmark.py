"""The pure functions of benchmark/: drawing shapes, racing peers, and making tables and pictures of rows."""

import io
import json
import math
import re
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from lltm_testing.building import run, with_lltm

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmark"))

import bench
import numpy
import pages
import pandas
import report
import results
import speed
import timing
from cases import VARIANTS, Case, Shape, Work, make_sequences, sweep_cases
from peers import CELLS, PEERS, SEQUENCE_PEERS, applicable, with_ours
from results import Row
from rich.console import Console
from rich.progress import Progress
from serving import latency
from sweep import (
    LARGEST,
    LARGEST_SEQUENCE,
    SMALLEST,
    SMALLEST_SEQUENCE,
    WORK_LIMIT,
    calls_per_graph,
    draw,
    draw_sequences,
    draw_steps,
    tasks_of_pairs,
)
from workload import errors

MACHINE = {"date": "today", "CPU": "a CPU", "command": "bench.py"}


class TestShape:
    def test_of_a_cell_has_three_sizes_and_of_a_sequence_four(self):
        assert Shape.parse("64, 32,128") == Shape(64, 32, 128)
        assert Shape.parse("9,64,32,128") == Shape(64, 32, 128, steps=9)
        assert [str(Shape.parse(text)) for text in ("64,32,128", "9,64,32,128")] == ["64,32,128", "9,64,32,128"]

    @pytest.mark.parametrize(
        "text", ["64,32", "9,64,32,128,1", "a,b,c", "64,32,", "0,32,128", "64,-1,128", "64,32,1.5", "1,0,3,4", ""]
    )
    def test_other_sizes_are_errors(self, text):
        message = f"expected a shape as [STEPS,]BATCH,INPUT_FEATURES,STATE_SIZE, got '{text}'"
        with pytest.raises(ValueError, match=re.escape(message)):
            Shape.parse(text)


class TestPeers:
    @pytest.mark.parametrize("work", Work)
    def test_of_a_cell(self, work):
        found = [peer.name for peer in applicable(Case("cpu", 1, work, "float32", Shape(1, 8, 16)), list(CELLS))]
        assert found == [name for name in CELLS if name != "tutorial" or work is not Work.AUTOCAST]

    def test_of_a_packed_sequence(self):
        case = Case("cpu", 1, Work.FORWARD, "float32", Shape(1, 8, 16, steps=4), variant="packed")
        found = [peer.name for peer in applicable(case, [*CELLS, *SEQUENCE_PEERS])]
        assert found == ["LLTM", "sequence", "lltm.LSTM", "lltm.GRU", "LSTM", "GRU"]

    @pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
    def test_our_cells_compute_what_those_of_torch_do(self, name):
        case = Case("cpu", 1, Work.TRAINING, "float32", Shape(3, 8, 16))
        cells = {PEERS[peer]: PEERS[peer].make(case) for peer in with_ours([name])}
        found = errors(case, cells)
        assert list(found) == [f"lltm.{name}", name]
        assert all(mean < 1e-6 for mean, _ in found.values())


class TestDraw:
    def test_is_the_same_for_a_seed_and_another_for_another(self):
        assert draw(60, seed=1) == draw(60, seed=1)
        assert draw(60, seed=1) != draw(60, seed=2)

    def test_a_longer_sweep_begins_as_a_shorter_one(self):
        assert draw(60, seed=5)[:20] == draw(20, seed=5)

    def test_sizes_and_work_are_within_bounds(self):
        for shape in draw(2000, seed=3):
            for size, low, high in zip(sizes(shape), sizes(SMALLEST), sizes(LARGEST), strict=True):
                assert low <= size <= high
            assert shape.batch * (shape.input_features + shape.state_size) * shape.state_size <= WORK_LIMIT

    def test_respects_a_smaller_range(self):
        assert all(shape.batch <= 8 and shape.state_size <= 64 for shape in draw(200, 1, Shape(8, 32, 64)))


def sizes(shape: Shape) -> tuple[int, int, int]:
    return (shape.batch, shape.input_features, shape.state_size)


class TestReport:
    """A file of rows becomes tables and pictures."""

    @staticmethod
    def write(path: Path, rows: list[Row]) -> None:
        with Progress(console=Console(file=io.StringIO())) as progress:
            results.run([("a case", lambda row=row: [row]) for row in rows], path, MACHINE, progress)

    @classmethod
    def tables(cls, folder: Path, *files: list[Row]) -> tuple[list[str], list[str]]:
        """The lines of the tables, and the names of the pictures."""
        paths = [folder / f"{number}.jsonl" for number in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            cls.write(path, rows)
        report.write(paths, folder / "all.md", folder / "pictures")
        return (folder / "all.md").read_text().splitlines(), sorted(p.name for p in (folder / "pictures").iterdir())

    @staticmethod
    def rows(section: str, shape: str, us: dict[str, float], work: str = "forward", **more) -> list[Row]:
        return [Row(section, "cpu", work=work, shape=shape, peer=name, us=time, **more) for name, time in us.items()]

    def test_a_failure_leaves_the_other_cases(self, tmp_path):
        def fails() -> list[Row]:
            raise ValueError("no such shape\nmore")

        path, console = tmp_path / "rows.jsonl", Console(file=io.StringIO())
        good = Row("sweep", "cpu", shape="1,8,16", peer="lltm", us=2.0)
        with Progress(console=console) as progress:
            results.run([("first", fails), ("second", lambda: [good])], path, MACHINE, progress)
        found = report.read([path])
        assert found.machines == [MACHINE]
        assert list(found.rows["message"]) == ["first: ValueError: no such shape", ""]
        assert found.rows.iloc[1][["peer", "us"]].to_list() == ["lltm", 2.0]
        assert "- first: ValueError: no such shape" in report.markdown(found).splitlines()

    def test_a_run_ends_in_time(self, tmp_path):
        with Progress(console=Console(file=io.StringIO())) as progress:
            results.run([("a case", list)] * 2, tmp_path / "rows.jsonl", MACHINE, progress, seconds=1e-9)
        assert report.read([tmp_path / "rows.jsonl"]).rows.empty

    def test_forward_and_training_are_pairs_over_the_fastest_baseline(self, tmp_path):
        more = {"low": 1.0, "high": 9.0, "error_mean": 1.5e-7}
        lines, pictures = self.tables(
            tmp_path,
            self.rows("cell", "1,8,16", {"lltm": 2.0, "eager": 3.0}, **more)
            + self.rows("cell", "1,8,16", {"lltm": 5.0, "eager": 20.0}, "training", **more),
        )
        assert "## CPU, 1 thread, float32" in lines
        assert "| 1,8,16 | 2 / 5 | 3 / 20 | 1.50 / 4.00 |" in lines
        assert any("| 1,8,16 |" in line and "| 1.5e-07 / 1.5e-07 | 1.5e-07 / 1.5e-07 |" in line for line in lines)
        assert pictures == ["cell.png"]

    def test_sequences_are_compared_with_the_faster_module_and_have_a_limit(self, tmp_path):
        us = {"LLTM": 2.0, "sequence": 1.0, "loop": 0.5, "LSTM": 4.0, "GRU": 2.7}
        rows = [
            row
            for variant in ("padded", "packed")
            for work in ("forward", "training")
            for row in self.rows("sequence", "128,16,128,128", us, work, variant=variant, limit=0.5)
        ]
        lines, pictures = self.tables(tmp_path, rows)
        found = [line for line in lines if line.startswith("| padded | 128,16,128,128 |")]
        assert len(found) == 1 and found[0].endswith("| 4 / 4 | 2.7 / 2.7 | 0.5 / 0.5 | 1.35 / 1.35 |")
        assert pictures == ["sequence.png"]

    def test_layers_and_cells_of_torch_have_speedups_of_their_own(self, tmp_path):
        us = {"LLTM": 2.0, "lltm.LSTM": 3.0, "lltm.GRU": 2.0, "LSTM": 4.5, "GRU": 5.0}
        lines, _ = self.tables(
            tmp_path,
            self.rows("sequence", "9,1,8,16", us, variant="padded")
            + self.rows("step", "1,8,16", {"lltm.LSTMCell": 2.0, "LSTMCell": 3.0, "lltm.GRUCell": 2.0, "GRUCell": 5.0}),
        )
        names = "| variant | shape | LLTM | lltm.LSTM | lltm.GRU | LSTM | GRU | speedup | LSTM speedup | GRU speedup |"
        assert names in lines and "| padded | 9,1,8,16 | 2 | 3 | 2 | 4.5 | 5 | 2.25 | 1.50 | 2.50 |" in lines
        cells = "| shape | lltm.LSTMCell | LSTMCell | lltm.GRUCell | GRUCell | LSTMCell speedup | GRUCell speedup |"
        assert cells in lines and "| 1,8,16 | 2 | 3 | 2 | 5 | 1.50 | 2.50 |" in lines

    def test_a_speedup_without_its_gradients_is_half_a_pair(self, tmp_path):
        """As where a run has ended."""
        us = {"lltm.GRUCell": 2.0, "GRUCell": 5.0}
        rows = [row for shape in ("1,8,16", "2,8,16") for row in self.rows("step", shape, us)]
        rows += self.rows("step", "1,8,16", {"lltm.GRUCell": 1.0, "GRUCell": 3.0}, "training")
        self.write(tmp_path / "rows.jsonl", rows)
        lines = report.speedups(report.read([tmp_path / "rows.jsonl"]).rows, "GRUCell speedup").splitlines()
        assert lines[-2:] == ["| 1, 8, 16 | 2.5 / 3.0 |", "| 2, 8, 16 | 2.5 / - |"]

    @pytest.mark.parametrize(
        ("section", "ours", "peer"),
        [("sweep", "lltm", "eager"), ("sequence sweep", "LLTM", "GRU"), ("step sweep", "lltm.GRUCell", "GRUCell")],
    )
    def test_sweeps_have_the_quantiles_and_the_worst_shapes(self, tmp_path, section, ours, peer):
        rows = [
            row
            for number in range(1, 22)
            for row in self.rows(section, f"{number},8,16", {ours: 2.0, peer: number / 2}, seed=number % 3)
        ]
        lines, pictures = self.tables(tmp_path, rows)
        assert "| CPU, 1 thread, float32, forward, no gradients | 0.25 | 0.75 | 2.75 | 5.25 | 3 of 21 |" in lines
        worst = [line for line in lines if ",8,16 |" in line]
        assert worst[0] == "| 1,8,16 | 2 | 0.5 | 0.25 |"
        assert [line.split(",")[0] for line in worst] == [f"| {number}" for number in range(1, report.WORST + 1)]
        assert "Seeds 0, 1, 2, pooled." in lines
        assert pictures == ([] if section == "step sweep" else [f"{section.replace(' ', '-')}.png"])

    def test_a_headline_is_of_device_time_and_of_shapes_with_both_dtypes(self, tmp_path):
        def shape(number: int, dtype: str, us: float, clock: str = "device") -> list[Row]:
            given = {"dtype": dtype, "clock": clock}
            return self.rows("sequence sweep", f"9,1,8,{number}", {"lltm.GRU": 1.0, "GRU": us}, "training", **given)

        both = [row for dtype in ("tf32", "float16") for number in (1, 2, 4) for row in shape(number, dtype, number)]
        rows = [
            *both,
            *shape(3, "tf32", 9.0),
            *(row for name in ("tf32", "float16") for row in shape(1, name, 8, "wall")),
        ]
        self.write(tmp_path / "rows.jsonl", rows)
        found = report.read([tmp_path / "rows.jsonl"])
        found.machines[0] |= {"GPU": "NVIDIA H200"}
        assert report.headline(found, "GRU speedup").replace("\n", " ") == (
            "On an NVIDIA H200, forward + backward of `lltm.GRU` is 2.0 times (1.0 to 4.0) as fast as cuDNN's with"
            " PyTorch's defaults, float32 in TF32, and 2.0 times (1.0 to 4.0) in float16: the median (and range) of 3"
            " random shapes with hidden sizes up to 4."
        )

    def test_files_are_pooled_and_the_last_measurement_of_a_shape_counts(self, tmp_path):
        def file(seed: int, us: float) -> list[Row]:
            return self.rows("sweep", "1,8,16", {"lltm": 1.0, "eager": us}, seed=seed)

        lines, _ = self.tables(tmp_path, file(1, 0.5), file(2, 3.0), file(1, 1.5))
        assert "| CPU, 1 thread, float32, forward, no gradients | 1.50 | 1.65 | 2.25 | 3.00 | 0 of 2 |" in lines

    def test_memory_calls_and_the_table_of_the_tutorial(self, tmp_path):
        kept = [
            Row("memory", "cpu", work="training", shape="1,8,16", peer=name, bytes=size, bytes_beyond_results=64)
            for name, size in (("lltm", 128), ("eager", 512))
        ]
        call = Row("calls", "cpu", work="forward", peer="Python, lltm.LLTMCell", us=2.5)
        tutorial = [
            Row("tutorial", "cpu", work=work, peer="lltm", us=us) for work, us in (("forward", 3), ("backward", 4))
        ]
        lines, _ = self.tables(tmp_path, [*kept, call, *tutorial])
        assert "| cpu | 1,8,16 | 512 / 64 | 128 / 64 |" in lines
        assert "| Python, lltm.LLTMCell | 2.5 |" in lines
        assert "| cpu | lltm | 3 | 4 |" in lines


class TestPages:
    """Tables of Markdown pages, from the measurements in benchmark/results."""

    @pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
    def test_the_tables_of_a_page_are_those_of_the_measurements(self, page):
        text = page.read_text()
        assert pages.BLOCK.search(text)
        assert text == pages.written(text), "python benchmark/bench.py publish MACHINE writes the tables"

    def test_the_pictures_of_speed_are_of_the_measurements(self):
        """Not the same bytes: the versions of matplotlib draw differently."""
        for picture in pages.SPEED.values():
            assert pages.digest_of_speed() in picture.read_text(), "publish draws it, too"

    def test_every_file_of_measurements_is_on_a_page(self):
        blocks = [block for page in pages.PAGES for block in pages.BLOCK.findall(page.read_text())]
        shown = {name for _, _, files, _ in blocks for name in files.split()}
        assert shown == {str(path.relative_to(pages.RESULTS)) for path in pages.RESULTS.rglob("*.json*")}

    def test_publishing_replaces_the_measurements_and_the_tables(self, tmp_path, monkeypatch):
        page, measured = tmp_path / "page.md", tmp_path / "sequence.jsonl"
        monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
        monkeypatch.setattr(pages, "PAGES", [page])
        monkeypatch.setattr(pages, "SPEED", {1: tmp_path / "speed.svg"})
        monkeypatch.setattr(pages, "SPEED_OF", "../series.jsonl")
        TestReport.write(tmp_path / "series.jsonl", TestSpeed.rows())
        with (tmp_path / "series.jsonl").open() as file:
            machine, *rest = file.read().splitlines()
        gpu = json.dumps({"machine": json.loads(machine)["machine"] | {"GPU": "NVIDIA H100 80GB HBM3"}})
        (tmp_path / "series.jsonl").write_text("\n".join([gpu, *rest]))
        page.write_text("Before.\n\n<!-- speedups: a/sequence.jsonl -->\n<!-- end -->\n\nAfter.\n")
        for us, shown in ((2.0, "2.0 / 2.0"), (4.0, "1.0 / 1.0")):
            rows = [
                row
                for work in ("forward", "training")
                for variant in ("padded", "packed")
                for row in TestReport.rows(
                    "sequence", "9,1,8,16", {"LLTM": us, "LSTM": 4.0}, work, variant=variant, dtype="tf32"
                )
            ]
            TestReport.write(measured, rows)
            pages.publish("a", [measured])
            assert "<svg" in (tmp_path / "speed.svg").read_text()
            lines = page.read_text().splitlines()
            assert lines[0] == "Before." and lines[-1] == "After."
            assert "| steps, batch, input, hidden | TF32 |" in lines and f"| 9, 1, 8, 16 | {shown} |" in lines

    def test_limits_have_a_column_each(self):
        of = {"cell": "GRU", "shape": [256, 32, 512, 512], "dtype": "tf32", "plan": "kernel=recurrence_gru_grid"}
        rows = [
            of | {"multiprocessors": m, "kib": k, "us": [us, 2 * us]} for m, k, us in ((132, 227, 1.5), (58, 99, 2))
        ]
        assert pages.limits(rows).splitlines() == [
            "| layer | steps, batch, input, hidden | dtype | 132, 227 KiB | 58, 99 KiB |",
            "| :--- | :--- | :--- | :--- | :--- |",
            "| lltm.GRU | 256, 32, 512, 512 | TF32 | 1.5 / 3 | 2 / 4 |",
        ]

    def test_a_transcribed_file_has_published_speedups_and_tables(self, tmp_path):
        path = tmp_path / "cell.jsonl"
        us = {"lltm": 2.0, "eager": 3.0}
        TestReport.write(path, TestReport.rows("cell", "1,8,16", us, speedup=1.49))
        kept = {"title": "Kept", "text": "As published.", "columns": ["a", "b"], "rows": [["1", "2 (met)"]]}
        with path.open("a") as file:
            file.write(json.dumps({"published": kept}) + "\n")
        text = report.tables(report.read([path]))
        assert "| 1,8,16 | 2 | 3 | 1.49 |" in text
        assert "## Kept\n\nAs published.\n\n| a | b |" in text and "| 1 | 2 (met) |" in text


class TestSpeed:
    """The picture of microseconds per step against the hidden size."""

    @staticmethod
    def rows(dtypes: Sequence[str] = ("float32", "float16")) -> list[Row]:
        return [
            Row("hidden size", "cuda", 1, dtype, "training", f"256,64,{size},{size}", peer, us, clock=clock)
            for dtype in dtypes
            for size in (128, 384, 512)
            for peer, us in {"LLTM": 2.0, "lltm.LSTM": 3.6, "LSTM": 9.0, "loop": 1.0}.items()
            for clock, us in {"device": us, "wall": 10.0}.items()
        ]

    @classmethod
    def picture(cls, columns: int) -> ElementTree.Element:
        rows = pandas.DataFrame([vars(row) for row in cls.rows()])
        return ElementTree.fromstring(speed.svg(rows, "NVIDIA H100 80GB HBM3", "a digest", columns))

    @staticmethod
    def texts(picture: ElementTree.Element) -> list[str]:
        return [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]

    def test_a_series_has_a_table_of_its_own(self, tmp_path):
        us = {"LLTM": 2.0, "LSTM": 9.0, "GRU": 5.0}
        rows = TestReport.rows("hidden size", "256,64,128,128", us, "training", variant="padded")
        TestReport.write(tmp_path / "rows.jsonl", rows)
        lines = report.markdown(report.read([tmp_path / "rows.jsonl"])).splitlines()
        assert "## CPU, 1 thread, float32, by hidden size" in lines
        assert "| padded | 256,64,128,128 | 2 | 9 | 5 | 2.50 |" in lines

    def test_has_a_panel_for_each_dtype_with_speedups_and_units(self):
        """float16 first, nothing of dtypes that were not measured, speedups in device time at powers of two."""
        texts = self.texts(self.picture(columns=2))
        assert [text for text in texts if text in speed.PANELS.values()] == ["float16", "float32 without TF32"]
        assert texts.count("2.5x") == 4 and "384" not in texts
        assert texts.count("hidden size (log)") == 2 and texts.count("µs per step (log)") == 1
        assert {"lltm.LSTM", "lltm.LLTM", "nn.LSTM (cuDNN)"} < set(texts) and "nn.GRU (cuDNN)" not in texts
        title = "NVIDIA H100, device time, forward + backward; 256 steps, batch 64; "
        assert any(text.startswith(title) for text in texts)

    def test_is_narrow_with_one_column_and_has_colors_for_the_dark(self):
        wide, narrow = (self.picture(columns) for columns in (2, 1))
        sizes = [
            [float(picture.get(side).removesuffix("pt")) for side in ("width", "height")] for picture in (wide, narrow)
        ]
        assert sizes[1][0] < sizes[0][0] and sizes[1][1] > sizes[0][1]
        (style,) = [
            element.text for element in narrow.iter("{http://www.w3.org/2000/svg}style") if "dark" in element.text
        ]
        for light, dark in speed.COLORS.values():
            assert light in style and dark in style
        assert "#1a7f37" not in ElementTree.tostring(narrow, encoding="unicode").replace(style, "")


class TestRace:
    budget = timing.Budget(10.0, 3, 5, 1e-3)

    @staticmethod
    def run(rules: timing.Race) -> tuple[dict[str, float], dict[str, int]]:
        """Times and the number of samples, where `far` is disturbed once and lltm is slow."""
        samples = {"lltm": [5.0], "near": [1.1], "far": [9.0, 2.0], "best": [1.0]}
        taken = dict.fromkeys(samples, 0)

        def sampler(name: str) -> timing.Sampler:
            def sample() -> float:
                taken[name] += 1
                return samples[name][min(taken[name], len(samples[name])) - 1]

            return timing.Sampler(sample, 1)

        return timing.race({name: sampler(name) for name in samples}, {"lltm"}, rules), taken

    def test_whoever_cannot_win_stops_after_two_samples(self):
        times, taken = self.run(timing.Race(self.budget))
        assert times == {"lltm": 5.0, "near": 1.1, "far": 5.5, "best": 1.0}
        assert taken == {"lltm": 5, "near": 5, "far": 2, "best": 5}

    def test_on_a_cpu_nobody_stops_and_the_minimum_counts(self):
        rules = timing.Race(self.budget, timing.CPU_RACE.margin, timing.CPU_RACE.result)
        times, taken = self.run(rules)
        assert times == {"lltm": 5.0, "near": 1.1, "far": 2.0, "best": 1.0}
        assert set(taken.values()) == {5}


class TestSequenceCases:
    @staticmethod
    def cases(shape: str, threads: list[int]) -> list[Case]:
        return make_sequences(["cpu"], threads, [Work.FORWARD], ["float32"], list(VARIANTS), [Shape.parse(shape)])

    def test_shapes_that_are_asked_for_are_measured_in_every_variant(self):
        found = [(case.threads, case.variant) for case in self.cases("5,2,3,4", [1, 2])]
        assert found == [(t, v) for t in (1, 2) for v in VARIANTS]

    def test_multiply_adds_of_a_step_count_layers_directions_and_lengths(self):
        found = {case.variant: case.multiply_adds for case in self.cases("8,2,3,4", [1])}
        assert found["padded"] == 2 * 3 * 4 * (4 + 3)
        assert found["packed"] == found["padded"] * (8 + 2) / 16  # the rows have 8 and 2 steps
        assert found["two layers"] == found["padded"] + 2 * 3 * 4 * (4 + 4)
        assert found["both directions"] == 2 * found["padded"]


class TestSequenceSweep:
    def test_seeds_take_turns_and_draw_the_same_shapes_again(self):
        draws = draw_sequences(16, [1, 2, 3])
        assert [seed for seed, _ in draws[:6]] == [1, 2, 3, 1, 2, 3]
        assert [shape for seed, shape in draws if seed == 2] == [shape for _, shape in draw_sequences(16, [2])]
        assert len({shape for _, shape in draws}) == 48

    def test_the_published_shapes_are_drawn_again(self):
        published = report.read([pages.RESULTS / "h100" / "sequence-sweep.jsonl"]).rows["shape"].unique()
        assert list(published) == [str(shape) for _, shape in draw_sequences(8, [1, 2, 3])]

    def test_sizes_stay_within_their_bounds_and_reach_both_ends(self):
        shapes = [shape for _, shape in draw_sequences(200, [1, 2, 3])]
        for name in ("steps", "batch", "input_features", "state_size"):
            sizes = [getattr(shape, name) for shape in shapes]
            low, high = getattr(SMALLEST_SEQUENCE, name), getattr(LARGEST_SEQUENCE, name)
            assert low <= min(sizes) <= 1.2 * low + 1 and 0.9 * high <= max(sizes) <= high
            assert numpy.median(sizes) == pytest.approx(math.sqrt(low * high), rel=0.5)
        assert 0.4 < numpy.mean([shape.input_features == shape.state_size for shape in shapes]) < 0.6

    def test_an_interrupted_run_has_every_dtype_of_its_shapes(self):
        works = [Work.FORWARD, Work.TRAINING]
        cases = sweep_cases(draw_sequences(2, [5]), ["cuda"], [2], ["float32", "tf32"], works, "padded")
        assert [(case.seed, case.dtype, str(case.work)) for case in cases[:4]] == [
            (5, dtype, work) for dtype in ("float32", "tf32") for work in ("forward", "training")
        ]
        assert len({case.shape for case in cases[:4]}) == 1

    def test_a_sweep_has_a_default_number_of_shapes(self):
        assert bench.with_counts(["--sequence", "--sweep"]) == ["--sequence", "--sweep", "32"]
        assert bench.with_counts(["--sweep", "--seed", "4"]) == ["--sweep", "32", "--seed", "4"]
        assert bench.with_counts(["--sweep", "8", "--quick"]) == ["--sweep", "8", "--quick"]


class TestStepSweep:
    def test_seeds_take_turns_and_sizes_stay_within_their_bounds(self):
        draws = draw_steps(40, [1, 2])
        assert draws[::2] == draw_steps(40, [1]) and [seed for seed, _ in draws[:4]] == [1, 2, 1, 2]
        for name, low in (("batch", 1), ("input_features", 8), ("state_size", 16)):
            sizes = [getattr(shape, name) for _, shape in draws]
            assert low <= min(sizes) and 500 < max(sizes) <= 1024

    @pytest.mark.parametrize(("variant", "steps", "ours"), [("", 1, "lltm.GRUCell"), ("padded", 4, "lltm.GRU")])
    def test_each_layer_and_cell_is_measured_beside_its_counterpart(self, variant, steps, ours):
        case = Case("cpu", 1, Work.TRAINING, "float32", Shape(2, 8, 16, steps), seed=7, variant=variant)
        ((name, task),) = tasks_of_pairs("a section", case, {"lltm.GRUCell": "GRUCell", "lltm.GRU": "GRU"})
        rows = list(task())
        assert name.endswith(f", {ours}") and [row.peer for row in rows] == [ours, ours.removeprefix("lltm.")]
        assert {(row.section, row.seed, row.shape) for row in rows} == {("a section", 7, case.sizes)}

    def test_a_graph_has_fewer_calls_of_several_steps(self):
        counts = [
            calls_per_graph(Case("cuda", 1, Work.FORWARD, "float32", Shape(2, 8, 16, steps), variant="padded"))
            for steps in (1, 2, 4, 8)
        ]
        assert counts == [20, 8, 4, 4]


class TestServing:
    """benchmark/serving."""

    @staticmethod
    def results(rows: list[dict], **facts) -> dict:
        return {"cpu": "A CPU", "cores": 2, "gpu": None, "torch": "2.15.0", "missing": {}, "rows": rows} | facts

    def test_the_table_shows_every_measurement(self):
        row = {"way": "package", "runners": 2, "batch": 1, "callers": 1, "threads": 1, "calls": 9}
        row |= {"p50_us": 10.4, "p99_us": 1234.5, "images_per_second": 98765.4}
        results = self.results(
            [row, row | {"callers": 2, "p50_us": 20.0, "images_per_second": 2e5}], missing={"script": "No reason."}
        )
        lines = latency.table(results).splitlines()
        assert "on A CPU, 2 cores, PyTorch 2.15.0" in lines[0]
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
        assert cells[0] == [
            "images per call", "served as", "1 caller, 1 thread", "2 callers, 1 thread", "images per second, 2 callers",
        ]  # fmt: skip
        assert cells[2] == ["1", f"{latency.WAYS['package']}, num_runners=2", "10 / 1,234", "20 / 1,234", "200,000"]
        assert lines[-1] == "Not measured: TorchScript. No reason."
        assert ", A GPU, PyTorch" in latency.table(self.results([row], gpu="A GPU"))

    @pytest.mark.release
    def test_every_way_and_load_is_measured(self):
        """Builds the program, and runs it for a short time."""
        pytest.importorskip("sklearn", reason="scikit-learn brings the digits")
        build_dir = with_lltm()["LLTM_LIBRARY"].parent
        if not (build_dir / "CMakeCache.txt").exists():
            pytest.skip("the library is not in a build tree, from which it could be installed")
        program = pages.ROOT / "benchmark" / "serving" / "run.py"
        run(sys.executable, program, "--build-dir", build_dir, "--seconds", 0.01, **with_lltm())
        rows = json.loads((build_dir / "serving" / "serving.json").read_text())["rows"]
        servers = {("script", 1), ("package", 1), ("package", 2), ("typed", 1)}
        found = [((row["way"], row["runners"]), row["batch"], (row["callers"], row["threads"])) for row in rows]
        assert sorted(found) == sorted(product(servers, (1, 360), {(1, 1), (1, 2), (2, 1)}))
        for row in rows:
            assert row["calls"] >= 5 * row["callers"] and 0 < row["p50_us"] <= row["p99_us"]
            # All callers together are at most this fast, if half of the calls take the median or longer.
            assert 0 < row["images_per_second"] < 2.1e6 * row["batch"] * row["callers"] / row["p50_us"]
