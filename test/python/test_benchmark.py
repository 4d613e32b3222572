"""The pure functions of benchmark/: drawing shapes, and making tables of times."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmark"))

import bench
import candidates
import fit
import load
import model
import numpy
import report
import timing
from cases import Case, Shape, Work
from reports import write_again
from results import Log, Measurement, Results, read_logs
from sequence import report as sequence_report
from sequence.cases import LARGEST as LARGEST_SEQUENCE
from sequence.cases import SMALLEST as SMALLEST_SEQUENCE
from sequence.cases import VARIANTS, SequenceShape, make_cases, make_sweep
from sequence.cases import draw as draw_sequences
from sequence.measure import Entry as SequenceEntry
from sweep.measure import Entry
from sweep.report import markdown, named_markdown, pool
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


class TestShape:
    def test_has_three_sizes_of_one_or_more(self):
        assert Shape.parse("64, 32,128") == Shape(64, 32, 128)
        for text in ("64,32", "64,32,128,1", "a,b,c", "64,32,", "0,32,128", "64,-1,128", "64,32,1.5", ""):
            with pytest.raises(ValueError, match=f"expected a shape as BATCH,INPUT_FEATURES,STATE_SIZE, got '{text}'"):
                Shape.parse(text)


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


COSTS_H = (Path(__file__).resolve().parents[2] / "src/cuda/plan/costs.h").read_text()
# Cf. test/cpp/device_facts.h.
H200 = model.Facts.of(
    [132, 227 * 1024, 1, 1, 132, 132, 126, 120, 100, 126, 98, 120, 264, 264, 252, 248, 235, 252, 224, 240]
)
GPU = f"NVIDIA H200, 2026-11-22: {' '.join(map(str, H200.numbers()))}"


def row(candidate: str, us: float, batch: int = 64, direction: str = "forward", dtype: str = "float32") -> fit.Row:
    return fit.Row(dtype, batch, 512, 512, direction, candidate, us, GPU)


class TestCosts:
    def test_are_named_by_the_initializer(self):
        text = "{ .a = {.once = 0.5, .in = {.tf32 = -3e-6}}, .rate = 4.07e6, .ranks_8 = {1, 2.5}}"
        expected = {"a.once": 0.5, "a.in.tf32": -3e-6, "rate": 4.07e6, "ranks_8.0": 1, "ranks_8.1": 2.5}
        assert model.parse_costs(text) == expected

    def test_are_written_to_the_header(self):
        block = COSTS_H[COSTS_H.index("{", COSTS_H.index("\nLLTM_COSTS(")) :]
        costs = model.parse_costs(block[: block.index("\n});")])
        assert len(costs) > 300
        changed = costs | {"forward.read_rate": 4.321e6, "step.wgmma_64x8.alone": -0.5}
        header = model.write_costs(COSTS_H, changed, "A GPU, today")
        different = [line for line in header.splitlines() if line not in COSTS_H.splitlines()]
        assert [line.strip() for line in different] == [
            "// A GPU, today.",
            ".read_rate = 4.32e6, .write_rate = 3.05e6, .chunk_rate = 9.83e6,",
            ".wgmma_64x8 = {.chunk = 0.146, .input_chunk = 0.0225, .block = 1.72, .alone = -0.5},",
        ]
        with pytest.raises(ValueError, match="other constants than the library"):
            model.write_costs(COSTS_H, {"forward.read_rate": 1.0}, "A GPU, today")


class TestFit:
    @pytest.fixture
    def known(self) -> model.Model:
        return model.load() or pytest.skip("the library was built without CUDA")

    @staticmethod
    def rows(known: model.Model, direction: str, costs: dict[str, float]) -> list[fit.Row]:
        """The times by the model itself with these constants, with every number of ranks."""
        rows, start = [], numpy.array(list(costs.values()))
        names = [name for name in known.selectable if name.startswith(candidates.PREFIXES[direction])]
        for name in names:
            for dtype in ("float32", "bfloat16"):
                cases = [Case("cuda", 1, Work.FORWARD, dtype, drawn.shape) for drawn in draw(30, seed=1)]
                for ranks in range(9):
                    problems = numpy.concatenate([candidates.problems(case, (ranks,)) for case in cases])
                    found = known.estimates(name, direction == candidates.STEP, H200, problems, start)
                    for case, one in zip(cases, found, strict=True):
                        if not numpy.isnan(one["us"]) and bool(ranks) == bool(one["ranks"]):
                            forced = f"{name}:{ranks}" if ranks else name
                            rows.append(fit.Row(dtype, *sizes(case.shape), direction, forced, float(one["us"]), GPU))
        return rows

    @pytest.mark.parametrize("direction", candidates.DIRECTIONS)
    def test_finds_the_constants_of_times_by_the_model(self, known, direction):
        random = numpy.random.default_rng(1)
        true = {name: value * random.choice((0.8, 0.9, 1.1, 1.25)) for name, value in known.costs.items()}
        rows = self.rows(known, direction, true)
        before, found = fit.judge(known, rows), fit.fit(known, rows, prior=1e-3)
        after = fit.judge(known, rows, found)
        for key, errors in after.errors.items():
            assert numpy.median(before.errors[key]) > 0.01 > numpy.median(errors)
        [name] = [name for name in after.choices if name.endswith("the least estimate")]
        assert numpy.mean(after.choices[name]) < 1.005
        text = fit.markdown(known, rows, found)
        assert "| constant | now | fitted | fitted / now |" in text

    def test_leaves_what_was_not_measured(self, known):
        rows = self.rows(known, candidates.STEP_BACKWARD, known.costs)
        rows = [replace(row, us=1.1 * row.us) for row in rows if row.dtype == "bfloat16"]
        changed = {name for name, value in fit.fit(known, rows, prior=1e-3).items() if value != known.costs[name]}
        assert "sequence_backward.launch" in changed
        assert not any(name.endswith((".float32", ".tf32")) or "forward." in name for name in changed)

    def test_fits_only_what_is_named(self, known):
        rows = [replace(row, us=1.1 * row.us) for row in self.rows(known, "forward", known.costs)]
        found = fit.fit(known, rows, only=r"^packing|tiles_16x8")
        changed = {name for name, value in found.items() if value != known.costs[name]}
        assert changed == {"packing.launch", "packing.rate", "forward.tiles_16x8.chunk", "forward.tiles_16x8.block"}

    def test_names_what_supports_a_case(self, known, monkeypatch):
        monkeypatch.setattr(known, "current_facts", lambda: H200)
        case = Case("cuda", 1, Work.FORWARD, "tf32", Shape(64, 512, 512))
        assert "forward_wgmma_64x24" in candidates.names(case, "forward")
        assert "forward_wgmma_float32_64x32" not in candidates.names(case, "forward")
        tiles = [f"sequence_backward_tiles_{side}" for side in ("32x32", "64x64")]
        assert candidates.names(case, "step_backward") == [*tiles, "sequence_backward_library"]
        ranks = candidates.names(case, "step_backward", every_rank=True)
        assert {"sequence_backward_tiles_32x32:4", "sequence_backward_library"} <= set(ranks)
        assert "sequence_backward_tiles_32x32" not in ranks

    def test_knows_what_the_model_does_not_support(self, known):
        rows = [row("forward_wgmma_64x24", 5.0), row("forward_wgmma_float32_64x32", 5.0), row("forward_library", 9.0)]
        assert [of.candidate for of in fit.Estimates(known, rows).rows] == [of.candidate for of in rows[1:]]

    def test_judges_the_measured_choice(self, known):
        rows = [row("auto", 6.0), row("forward_tiles_64x8", 5.0), row("forward_library", 8.0)]
        assert fit.judge(known, rows).choices["forward: the choice as measured"] == [1.2]

    def test_measurements_survive_the_csv(self, tmp_path):
        rows = [row("forward_tiles_64x8:4", 2.5), row("backward_library", 1e-3, direction="backward", dtype="tf32")]
        with fit.Csv(tmp_path / "a.csv") as file:
            file.write(rows)
        assert fit.read([tmp_path / "a.csv"]) == rows
        assert [(of.name, of.ranks) for of in rows] == [("forward_tiles_64x8", 4), ("backward_library", 0)]
        assert fit.measured_on(rows) == "NVIDIA H200, 2026-11-22, replaying captured graphs"

    def test_says_how_good_the_choice_would_be(self):
        rows = [
            row(name, us, batch)
            for batch, times in ((1, (2.0, 3.0)), (64, (8.0, 4.0)))
            for name, us in zip(("tiles", "library"), times, strict=True)
        ]
        assert fit.chosen_over_best(rows, [0, 1, 0, 1]) == [1.0, 2.0]
        assert fit.chosen_over_best(rows, [of.us for of in rows]) == [1.0, 1.0]

    def test_a_candidate_chooses_its_ranks_where_none_were_forced(self):
        rows = [row("tiles", 2.0), row("tiles:1", 6.0), row("tiles:2", 3.0), row("wgmma", 4.0)]
        assert fit.chosen_over_best(rows, [1, 9, 2, 3]) == [1.5]
        assert fit.chosen_over_best(rows[:1] + rows[3:], [1, 3]) == [1.0]


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
            limit=0.5 if device == "cpu" else None,
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
        assert "| 4 / 4 | 2.7 / 2.7 | 0.5 / 0.5 | 1.35 / 1.35 | 1.35 (met) / 1.4 (**missed**) |" in text
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

    def test_idle_and_loaded_times_are_side_by_side(self):
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

    def test_multiply_adds_of_a_step_count_layers_directions_and_lengths(self):
        cases = make_cases(["cpu"], [1], ["float32"], ["forward"], list(VARIANTS), [SequenceShape(8, 2, 3, 4)])
        found = {case.variant: case.multiply_adds for case in cases}
        assert found["padded"] == 2 * 3 * 4 * (4 + 3)
        assert found["packed"] == found["padded"] * (8 + 2) / 16  # the rows have 8 and 2 steps
        assert found["two layers"] == found["padded"] + 2 * 3 * 4 * (4 + 4)
        assert found["both directions"] == 2 * found["padded"]

    def test_a_shape_has_four_sizes_of_one_or_more(self):
        for text in ("1,2", "1,2,3,x", "1,0,3,4"):
            message = f"expected a sequence as STEPS,BATCH,INPUT_FEATURES,STATE_SIZE, got '{text}'"
            with pytest.raises(ValueError, match=message):
                SequenceShape.parse(text)


class TestSequenceSweep:
    def test_seeds_take_turns_and_draw_the_same_shapes_again(self):
        draws = draw_sequences(16, [1, 2, 3])
        assert [seed for seed, _ in draws[:6]] == [1, 2, 3, 1, 2, 3]
        assert [shape for seed, shape in draws if seed == 2] == [shape for _, shape in draw_sequences(16, [2])]
        assert len({shape for _, shape in draws}) == 48

    def test_sizes_stay_within_their_bounds_and_reach_both_ends(self):
        shapes = [shape for _, shape in draw_sequences(200, [1, 2, 3])]
        for name in ("steps", "batch", "input_features", "state_size"):
            sizes = [getattr(shape, name) for shape in shapes]
            low, high = getattr(SMALLEST_SEQUENCE, name), getattr(LARGEST_SEQUENCE, name)
            assert low <= min(sizes) <= 1.2 * low + 1 and 0.9 * high <= max(sizes) <= high
            assert numpy.median(sizes) == pytest.approx(math.sqrt(low * high), rel=0.5)
        assert 0.4 < numpy.mean([shape.input_features == shape.state_size for shape in shapes]) < 0.6

    def test_an_interrupted_run_has_every_dtype_of_its_shapes(self):
        cases = make_sweep(["cuda"], [2], ["float32", "tf32"], [Work.FORWARD, Work.TRAINING], draw_sequences(2, [5]))
        assert [(case.seed, case.dtype, str(case.work)) for case in cases[:4]] == [
            (5, dtype, work) for dtype in ("float32", "tf32") for work in ("forward", "training")
        ]
        assert len({case.shape for case in cases[:4]}) == 1

    def test_tables_have_the_quantiles_and_the_worst_ten_and_a_picture(self, tmp_path):
        with Log(tmp_path / "sequence-sweep.jsonl") as log:
            for number in range(1, 22):
                times = {"LLTM": 2.0, "LSTM": number / 2, "GRU": 50.0}
                log.write(
                    SequenceEntry("cuda", 1, "tf32", "padded", "forward", f"16,{number},8,32", "device", times, times,
                                  limit=0.25, seed=number % 3)
                )  # fmt: skip
        write_again([tmp_path / "sequence-sweep.jsonl"], tmp_path / "all.md", tmp_path / "pictures")
        lines = (tmp_path / "all.md").read_text().splitlines()
        assert "| GPU, tf32, forward, no gradients | 0.25 | 0.75 | 2.75 | 5.25 | 3 of 21 |" in lines
        worst = [line for line in lines if line.startswith("| 16,")]
        assert worst[0] == "| 16,1,8,32 | 0.25 | 2 | 0.5 | 50 | 0.25 |"
        assert [line.split(",")[1] for line in worst] == [str(number) for number in range(1, 11)]
        assert any(line.startswith("Seeds 0, 1, 2, pooled.") for line in lines)
        assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["sequence-sweep.png"]

    def test_a_sweep_has_a_default_number_of_shapes(self):
        assert bench.with_counts(["--sequence", "--sweep"]) == ["--sequence", "--sweep", "32"]
        assert bench.with_counts(["--sweep", "--seed", "4"]) == ["--sweep", "32", "--seed", "4"]
        assert bench.with_counts(["--sweep", "8", "--quick"]) == ["--sweep", "8", "--quick"]
