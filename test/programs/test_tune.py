"""The pure functions of tools/tune: the constants of the planner's cost model, and their fit."""

import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmark"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tools" / "tune"))

import candidates
import fit
import model
import numpy
from cases import Case, Shape, Work
from sweep import draw


def sizes(shape: Shape) -> tuple[int, int, int]:
    return (shape.batch, shape.input_features, shape.state_size)


PLAN = Path(__file__).resolve().parents[2] / "src/cuda/plan"
COSTS_H = (PLAN / "costs.h").read_text()
# Cf. test/unit/device_facts.h.
RESIDENT = [132, 132, 126, 120, 100, 126, 98, 120, *[0] * 7, 112]
RESIDENT_BY_TWO = [264, 264, 252, 248, 235, 252, 224, 240, *[0] * 8]
H200 = model.Facts.of([132, 227 * 1024, 1980, 4917, 1, 1, *RESIDENT, *RESIDENT_BY_TWO])
GPU = f"NVIDIA H200, 2026-11-22: {' '.join(map(str, H200.numbers()))}"


def test_facts_of_another_version_are_refused():
    with pytest.raises(ValueError, match="expected 38 facts about the GPU, got 20: measure them again"):
        model.Facts.of(H200.numbers()[:20])


def row(candidate: str, us: float, batch: int = 64, direction: str = "forward", dtype: str = "float32") -> fit.Row:
    return fit.Row(dtype, batch, 512, 512, direction, candidate, us, GPU)


def costs_in(header: str) -> dict[str, float]:
    block = header[header.index("{", header.index("\nLLTM_COSTS(")) :]
    return model.parse_costs(block[: block.index("\n});")])


class TestCosts:
    def test_are_named_by_the_initializer(self):
        text = "{ .a = {.once = 0.5, .in = {.tf32 = -3e-6}}, .rate = 4.07e6, .ranks_8 = {1, 2.5}}"
        expected = {"a.once": 0.5, "a.in.tf32": -3e-6, "rate": 4.07e6, "ranks_8.0": 1, "ranks_8.1": 2.5}
        assert model.parse_costs(text) == expected

    def test_are_written_to_the_header(self):
        costs = costs_in(COSTS_H)
        assert costs
        changed = dict(random.Random(1).sample(sorted(costs.items()), 5))
        changed = {name: 1.4321 * value - 2e-3 for name, value in changed.items()}
        header = model.write_costs(COSTS_H, costs | changed, "A GPU, today")
        assert costs_in(header) == costs | {name: float(f"{value:.3g}") for name, value in changed.items()}
        different = [line for line in header.splitlines() if line not in COSTS_H.splitlines()]
        assert different[0] == "// A GPU, today." and len(different) <= 1 + len(changed)
        with pytest.raises(ValueError, match="other constants than the library"):
            model.write_costs(COSTS_H, {"forward.read_rate": 1.0}, "A GPU, today")

    def test_of_a_candidate_are_written_to_its_row(self):
        table = """// clang-format off
    few("forward_few", {1, 1}, {}),
    tiles("forward_a", {64, 8, 2}, 8,
        {.cell = {.chunk = 0.128, .block = 1.53}, .step = {.chunk = 2, .alone = -0.7}}, /*float32=*/true),
    tiles("forward_b", {64, 8}, {.chunk = {.tf32 = 5e-3}, .finish = 3}, true),
    {"forward_library", Group::kLibrary, {}, {}, supports},
"""
        costs = {"forward_a.cell.chunk": 0.2, "forward_a.cell.block": 1.53, "forward_a.step.chunk": 2.0}
        costs |= {"forward_a.step.alone": -0.8, "forward_b.chunk.tf32": 5e-3, "forward_b.finish": 4.0}
        expected = table.replace("0.128", "0.2").replace("-0.7", "-0.8").replace("= 3}", "= 4}")
        assert model.write_times(table, costs) == expected
        with pytest.raises(ValueError, match="other constants than the library"):
            model.write_times(table, {"forward_a.cell.chunk": 0.2})

    @pytest.mark.parametrize("table", ["forward.cpp", "sequence_gradients.cpp"])
    def test_of_all_candidates_are_written(self, table):
        source = (PLAN / table).read_text()
        times = model.times_in(source)
        rows = re.findall(r'^    [\w:<>]+\("(\w+)", \{', source, re.MULTILINE)
        assert len(rows) > 5
        assert {name.partition(".")[0] for name in times} == set(rows)
        written = model.write_times(source, {name: 1.4321 * time for name, time in times.items()})
        assert model.times_in(written) == {name: float(f"{1.4321 * time:.3g}") for name, time in times.items()}
        assert model.times_in(model.write_times(written, times)) == times
        if known := model.load():
            nonzero = {name: time for name, time in times.items() if time != 0}
            assert nonzero.items() <= known.costs.items()


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
                cases = [Case("cuda", 1, Work.FORWARD, dtype, shape) for shape in draw(30, seed=1)]
                for ranks in range(9):
                    problems = numpy.concatenate([candidates.problems(case, (ranks,)) for case in cases])
                    found = known.estimates(name, candidates.kind_of(direction), H200, problems, start)
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
        # Of one candidate, what was drawn may happen to cancel.
        assert numpy.median(numpy.concatenate(list(before.errors.values()))) > 0.03
        for errors in after.errors.values():
            assert numpy.median(errors) < 0.01
        [name] = [name for name in after.choices if name.endswith("the least estimate")]
        assert numpy.mean(after.choices[name]) < 1.005
        text = fit.markdown(known, rows, found)
        assert "| constant | now | fitted | fitted / now |" in text

    def test_leaves_what_was_not_measured(self, known):
        rows = self.rows(known, candidates.STEP_BACKWARD, known.costs)
        rows = [replace(row, us=1.1 * row.us) for row in rows if row.dtype == "bfloat16"]
        changed = {name for name, value in fit.fit(known, rows, prior=1e-3).items() if value != known.costs[name]}
        assert "sequence_backward.launch" in changed
        assert not any(name.endswith((".float32", ".tf32")) or "forward" in name for name in changed)

    def test_fits_only_what_is_named(self, known):
        rows = [replace(row, us=1.1 * row.us) for row in self.rows(known, "forward", known.costs)]
        found = fit.fit(known, rows, only=r"^packing|tiles_16x8")
        changed = {name for name, value in found.items() if value != known.costs[name]}
        tile = {"forward_tiles_16x8.cell.chunk", "forward_tiles_16x8.cell.block"}
        assert changed == {"packing.launch", "packing.rate", *tile}

    def test_names_what_supports_a_case(self, known, monkeypatch):
        monkeypatch.setattr(known, "current_facts", lambda: H200)
        case = Case("cuda", 1, Work.FORWARD, "tf32", Shape(64, 512, 512))
        assert "forward_wgmma_64x24" in candidates.names(case, "forward")
        assert "forward_wgmma_float32_64x32" not in candidates.names(case, "forward")
        tiles = [f"sequence_backward_wgmma_{tile}" for tile in ("64x32", "64x64", "128x64")]
        tiles += [f"sequence_backward_tiles_{side}" for side in ("32x32", "64x64")]
        assert candidates.names(case, "step_backward") == [*tiles, "sequence_backward_library"]
        ranks = candidates.names(case, "step_backward", every_rank=True)
        assert {"sequence_backward_tiles_32x32:4", "sequence_backward_library"} <= set(ranks)
        assert "sequence_backward_tiles_32x32" not in ranks
        of_lstm = [f"lstm_wgmma_{tile}" for tile in ("64x8", "64x24", "128x32")] + ["forward_library"]
        assert candidates.names(case, "lstm") == candidates.names(case, "lstm_step") == of_lstm
        few = Case("cuda", 1, Work.FORWARD, "float32", Shape(4, 512, 512))
        assert "forward_few_rows" in candidates.names(few, "lstm")

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
