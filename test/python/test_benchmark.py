"""The pure functions of benchmark/: drawing shapes, and making tables of times."""

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmark"))

import candidates
import fit
import load
import report
import timing
from cases import Shape
from reports import write_again
from results import Log, Measurement, Results, read_logs
from sequence import report as sequence_report
from sequence.cases import VARIANTS, SequenceShape, make_cases
from sequence.measure import Entry as SequenceEntry
from sweep.measure import Entry
from sweep.report import markdown, named_markdown, pool, quantile
from sweep.shapes import LARGEST, SMALLEST, WORK_LIMIT, draw


def make_entry(shape: str, speedup: float, *, seed: int = 1, dtype: str = "float32", **more) -> Entry:
    return Entry(
        seed=seed,
        device="cpu",
        threads=1,
        dtype=dtype,
        work="forward",
        shape=shape,
        times={"lltm": 10.0, "eager": 10.0 * speedup},
        speedup=speedup,
        **more,
    )


class TestDraw:
    def test_is_the_same_for_a_seed_and_another_for_another(self):
        assert draw(60, seed=1) == draw(60, seed=1)
        assert [d.shape for d in draw(60, seed=1)] != [d.shape for d in draw(60, seed=2)]

    def test_a_longer_sweep_begins_as_a_shorter_one(self):
        assert draw(60, seed=5)[:20] == draw(20, seed=5)

    def test_sizes_and_work_are_within_bounds(self):
        for entry in draw(2000, seed=3):
            shape = entry.shape
            for size, low, high in zip(sizes(shape), sizes(SMALLEST), sizes(LARGEST), strict=True):
                assert low <= size <= high
            assert shape.batch * (shape.input_features + shape.state_size) * shape.state_size <= WORK_LIMIT

    def test_the_batch_is_halved_no_more_than_needed(self):
        # With a batch of one, the largest columns are far below the limit, so some shape comes close to it.
        work = [
            s.batch * (s.input_features + s.state_size) * s.state_size for s in (d.shape for d in draw(2000, seed=3))
        ]
        assert max(work) > WORK_LIMIT / 2

    def test_three_in_five_have_columns_that_are_multiples_of_eight(self):
        shapes = [entry.shape for entry in draw(1000, seed=4)]
        aligned = [shape.input_features % 8 == 0 and shape.state_size % 8 == 0 for shape in shapes]
        # Of the shapes that are not rounded, one in 64 is aligned by chance, more often for small sizes.
        assert 600 <= sum(aligned) <= 640

    def test_sizes_are_log_uniform(self):
        logarithms = [math.log(entry.shape.state_size / 16) / math.log(2048 / 16) for entry in draw(4000, seed=6)]
        assert sum(logarithms) / len(logarithms) == pytest.approx(0.5, abs=0.02)
        assert sum(value < 0.25 for value in logarithms) / len(logarithms) == pytest.approx(0.25, abs=0.04)

    def test_respects_a_smaller_range(self):
        assert all(d.shape.batch <= 8 and d.shape.state_size <= 64 for d in draw(200, 1, Shape(8, 32, 64)))


def sizes(shape: Shape) -> tuple[int, int, int]:
    return (shape.batch, shape.input_features, shape.state_size)


class TestPooling:
    def test_quantiles(self):
        values = [4.0, 1.0, 3.0, 2.0, 5.0]
        assert [quantile(values, q) for q in (0, 0.1, 0.5, 1)] == pytest.approx([1, 1.4, 3, 5])

    def test_seeds_are_pooled_and_the_last_measurement_counts(self):
        entries = [
            make_entry("1,8,16", 0.5),
            make_entry("2,8,16", 2.0),
            make_entry("1,8,16", 3.0, seed=2),
            make_entry("1,8,16", 1.5),
            make_entry("1,8,16", 9.0, dtype="bfloat16"),
        ]
        pooled = pool(entries)
        assert sorted(e.speedup for e in pooled["cpu", 1, "float32", "forward"]) == [1.5, 2.0, 3.0]
        assert [e.speedup for e in pooled["cpu", 1, "bfloat16", "forward"]] == [9.0]

    def test_the_choice_is_compared_with_the_best_candidate(self):
        entry = make_entry("1,8,16", 2.0, candidates={"auto": 6.0, "tiles": 5.0, "library": 8.0})
        assert entry.chosen_over_best == pytest.approx(1.2)
        assert make_entry("1,8,16", 2.0).chosen_over_best is None

    def test_tables_name_the_best_candidate(self):
        times = {"auto": 6.0, "forward_tiles_16x8": 5.0, "forward_library": 8.0}
        text = markdown([make_entry("1,8,16", 2.0, candidates=times)], "a machine")
        assert "| 1,8,16 | 1.20 | 6 | 5 | forward_tiles_16x8 |" in text
        assert "| CPU, 1 thread, float32, forward | 1.20 | 1.20 | 1.20 | 1.15 (**missed**) |" in text

    def test_candidates_of_a_direction_or_else_the_groups(self):
        selectable = ["auto", "tiles", "forward_tiles_16x8", "forward_library"]
        assert candidates.names_of("forward", selectable) == ("forward_tiles_16x8", "forward_library")
        assert candidates.names_of("backward", selectable) == candidates.GROUPS
        assert candidates.names_of("step", selectable) == candidates.names_of("forward", selectable)

    def test_tables_tell_the_quantiles_and_the_worst_first(self):
        text = markdown([make_entry(f"{batch},8,16", batch / 4) for batch in range(1, 22)], "a machine")
        assert "| CPU, 1 thread, float32, forward, no gradients | 0.25 | 0.75 | 2.75 | 5.25 | 3 of 21 |" in text
        worst = [line for line in text.splitlines() if line.startswith("| ") and ",8,16" in line]
        assert [line.split(" | ")[0] for line in worst] == [f"| {batch},8,16" for batch in range(1, 11)]

    def test_logs_of_a_kind_are_written_again_together(self, tmp_path):
        for seed in (1, 2):
            with Log(tmp_path / f"sweep-{seed}.jsonl") as log:
                log.write(make_entry("1,8,16", float(seed), seed=seed))
        write_again(sorted(tmp_path.glob("*.jsonl")), tmp_path / "all.md", tmp_path / "pictures")
        assert "| 1.00 | 1.10 | 1.50 | 2.00 | 0 of 2 |" in (tmp_path / "all.md").read_text()
        assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["sweep.png"]

    def test_a_file_of_no_known_kind_is_an_error(self, tmp_path):
        with pytest.raises(ValueError, match="a log whose name begins with sweep, named, sequence, load; got other"):
            write_again([tmp_path / "other.jsonl"], tmp_path / "all.md", None)

    def test_logs_are_read_back(self, tmp_path):
        entries = [make_entry("1,8,16", 2.0, candidates={"auto": 1.0}), make_entry("2,8,16", 3.0, failures={"a": "b"})]
        for index, entry in enumerate(entries):
            with Log(tmp_path / f"{index}.jsonl") as log:
                log.write(entry)
        assert read_logs(sorted(tmp_path.iterdir()), Entry) == entries


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


class TestFit:
    def test_finds_the_constants_of_a_linear_model(self):
        true = {"launch": 2.0, "bytes": 3e-7}
        features = [{"launch": 1.0, "bytes": float(amount)} for amount in (1e4, 1e6, 3e6, 1e7, 5e7)]
        found = fit.fit(features, [fit.linear(true, entry) for entry in features])
        assert found.constants == pytest.approx(true, rel=1e-3)
        assert found.largest_error < 1e-3

    def test_finds_the_constants_of_another_model(self):
        def roofline(constants, features):
            return constants["launch"] + max(
                constants["byte"] * features["bytes"], constants["flop"] * features["flops"]
            )

        true = {"launch": 1.5, "byte": 4e-7, "flop": 2e-9}
        features = [{"bytes": b, "flops": f} for b in (1e5, 1e6, 1e7) for f in (1e6, 1e9, 1e10)]
        us = [roofline(true, entry) for entry in features]
        found = fit.fit(features, us, start={"launch": 1.0, "byte": 1e-6, "flop": 1e-8}, model=roofline)
        assert found.constants == pytest.approx(true, rel=0.01)

    def test_measurements_survive_the_csv(self, tmp_path):
        rows = [
            fit.Row("float32", 4, 8, 16, "forward", "tiles", 2.5, {"waves": 3.0, "bytes": 1e6}),
            fit.Row("tf32", 4, 8, 16, "backward", "library", 1e-3, {}),
        ]
        with fit.Csv(tmp_path / "a.csv") as file:
            file.write(rows)
        assert fit.load([tmp_path / "a.csv"]) == rows

    def test_says_how_good_the_choice_would_be(self):
        rows = [
            fit.Row("float32", batch, 8, 16, "forward", name, us, {})
            for batch, times in ((1, (2.0, 3.0)), (64, (8.0, 4.0)))
            for name, us in zip(("tiles", "library"), times, strict=True)
        ]
        assert fit.chosen_over_best(rows, lambda row: 0.0 if row.candidate == "tiles" else 1.0) == [1.0, 2.0]
        assert fit.chosen_over_best(rows, lambda row: row.us) == [1.0, 1.0]

    def test_tells_how_good_the_choice_is_by_direction(self):
        rows = [
            fit.Row("float32", batch, 8, 16, direction, name, us * batch, {})
            for direction, auto in (("forward", 2.0), ("step", 3.0))
            for batch in (1, 2, 4)
            for name, us in (("auto", auto), ("tiles", 2.0), ("library", 4.0))
        ]
        fitted = fit.fit_candidates(rows)
        assert fitted.choices["forward: the choice of today"] == [1.0] * 3
        assert fitted.choices["step: the choice of today"] == [1.5] * 3
        assert "| step: the choice of today | 1.50 | 1.50 | 1.50 |" in fit.markdown(fitted)


class TestSequenceReport:
    entries = [
        SequenceEntry(
            device=device,
            threads=1,
            dtype="float32",
            variant="padded",
            work=work,
            shape="128,16,128,128",
            clock="wall",
            medians={"LLTM": 9.0, "sequence": 9.0, "LSTM": 90.0, "GRU": 90.0, "loop": 9.0},
            minima={"LLTM": 2.0, "sequence": 1.0, "LSTM": 4.0, "GRU": 2.7, "loop": 6.0},
        )
        for device in ("cpu", "cuda")
        for work in ("forward", "training")
    ]

    def test_speedup_is_over_the_faster_module_by_minima_on_a_cpu_and_by_medians_on_a_gpu(self):
        assert sequence_report.speedup(self.entries[0]) == pytest.approx(1.35)
        assert sequence_report.over_loop(self.entries[0]) == pytest.approx(3.0)
        assert sequence_report.speedup(self.entries[2]) == pytest.approx(10.0)
        assert sequence_report.over_loop(self.entries[2]) == pytest.approx(1.0)

    def test_tables_compare_with_the_targets(self):
        text = sequence_report.markdown(self.entries, "a machine")
        assert "| 2 / 2 | 1 / 1 | 6 / 6 | 4 / 4 | 2.7 / 2.7 | 1.35 / 1.35 | 1.35 (met) / 1.4 (**missed**) |" in text
        assert "| 10.00 / 10.00 | 1.00, 1 (met) / 1.00, 1.67 (**missed**) |" in text


class TestOtherReports:
    def test_the_run_of_fixed_shapes_has_forward_and_training_in_a_table(self):
        def measured(work: str, peer: str, us: float) -> Measurement:
            return Measurement("cpu", 2, work, "float32", "1,8,16", "wall", peer, us, us, us, 5, 9, 1e-7, 1e-6, us)

        run = Results({"CPU": "a CPU", "date": "today", "command": "bench.py"})
        run.measurements += [measured("forward", name, us) for name, us in (("lltm", 2.0), ("eager", 3.0))]
        run.measurements += [measured("training", name, us) for name, us in (("lltm", 5.0), ("eager", 20.0))]
        text = report.markdown(run)
        assert "| 1,8,16 | 2 / 5 | 3 / 20 | 1.50 / 4.00 |" in text
        assert "| CPU, 2 threads, float32 | 1.50 / 4.00 |" in text

    def test_quiet_and_load_stand_side_by_side(self):
        entries = [load.Entry(1, busy, "forward", "1,8,16", "lltm", 5.0 + busy, 6.0, 7.0, 5.5, 100) for busy in (0, 2)]
        assert "| 1,8,16 | forward | lltm | 1 | 5 | 7 | 5.5 | 7 | 7 | 5.5 |" in load.markdown(entries, "a machine")

    def test_named_shapes_stand_beside_their_targets(self):
        entry = Entry(None, "cuda", 1, "bfloat16", "forward", "64,500,500", {"lltm": 6.5, "eager": 13.0}, 2.0)
        row = "| 64,500,500 | 6.5 | 6 (**missed**) | 13 (eager) | 2.00 |  |"
        assert row in named_markdown([entry], "a machine")


class TestSequenceCases:
    def test_shapes_that_are_asked_for_are_measured_in_every_variant(self):
        shape = SequenceShape.parse("5,2,3,4")
        cases = make_cases(["cpu"], [1, 2], ["float32"], ["forward"], list(VARIANTS), [shape])
        assert [(case.threads, case.variant) for case in cases] == [(t, v) for t in (1, 2) for v in VARIANTS]

    def test_a_shape_has_four_sizes(self):
        with pytest.raises(ValueError, match="expected a sequence as STEPS,BATCH,INPUT_FEATURES,STATE_SIZE, got '1,2'"):
            SequenceShape.parse("1,2")
