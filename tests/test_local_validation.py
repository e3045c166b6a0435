"""Prediction beside real decoding on this machine. Times are not judged here, where others compute too; what must be equal is."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.questions.local_validation import (
    TOTAL_BAR,
    Compared,
    DecodingTime,
    LocalCase,
    LocalValidation,
    Machine,
    noise_floors,
    sign,
)
from simulator.reports.local_validation import local_notes, local_sentences, local_summary, local_tables, write_local_validation
from simulator.spec import SpecError
from simulator.validate.local import STANDARD, LocalOrder, read_pairs, validate_locally
from tests.test_scenario import run_quietly

MACHINE = Machine("a processor", 2, 0.4, 1.0, "2.0", 3, 5.0)


def compared(predicted: float, measured: float, steps: int = 10) -> Compared:
    def time(total_s: float) -> DecodingTime:
        return DecodingTime({"prefill": 0.1 * total_s, "verify": 0.9 * total_s}, steps)

    return Compared(time(predicted), time(measured))


def case(predicted: float = 2.0, measured: float = 2.0, plain: float = 3.0, **changes) -> LocalCase:
    made = LocalCase(
        target="t", draft="d", gamma=4, batch=1, kind="ordinary", mean_acceptance_length=2.5, plain=compared(plain, plain, 30),
        speculative=compared(predicted, measured), acceptance_rate=0.7, independent_s=2.6, textbook_speedup=1.8, rounds_equal=True,
        texts=(8, 8), block_errors=((0.01, -0.01), (-0.01, 0.01), (0.0, 0.0)), total_floor=0.01, speedup_floor=0.02,
    )  # fmt: skip
    return replace(made, **changes)


def found(*cases: LocalCase) -> LocalValidation:
    return LocalValidation(MACHINE, cases)


# -------------------------------------------------------------------------------------------------------------- judgement


def test_exact_prediction_holds_and_a_wrong_one_is_told():
    assert found(case()).verdict == "holds"
    wrong = found(case(), case(predicted=2.0 * (1 + TOTAL_BAR + 0.02)))
    assert wrong.verdict == "fails"
    assert "differ by more than the bars allow" in local_sentences(wrong)[0]
    assert any(row[6].endswith("outside") for _, _, rows in [next(local_tables(wrong))] for row in rows)


def test_totals_within_their_bar_but_all_to_one_side_fail_on_average():
    assert found(*[case(predicted=2.0 * 1.07)] * 4).verdict == "fails"


def test_a_noisy_machine_is_not_judged_but_wrong_rounds_are_wrong_on_any_machine():
    noisy = case(predicted=2.4, total_floor=0.2, speedup_floor=0.3)
    assert found(noisy).verdict == "too busy to judge"
    assert any("cannot be judged" in note for note in local_notes(found(noisy)))
    broken = found(replace(noisy, rounds_equal=False))
    assert broken.verdict == "fails"
    assert any("ROUNDS DIFFER" in sentence for sentence in local_sentences(broken))


def test_signs_within_the_noise_are_too_close_to_call_and_others_count():
    assert (sign(1.2, 0.1), sign(0.8, 0.1), sign(1.05, 0.1)) == ("win", "lose", "close")
    flipped = case(predicted=2.1, measured=2.0, plain=2.05, speedup_floor=0.005)
    assert not flipped.sign_right
    assert found(flipped).verdict == "fails"
    assert replace(flipped, speedup_floor=0.05).sign_right


def test_noise_floors_shrink_with_repetition_and_are_unknown_without():
    few = case(block_errors=((0.02, -0.02), (-0.02, 0.02)))
    many = case(block_errors=((0.02, -0.02), (-0.02, 0.02)) * 8)
    assert noise_floors([many])[0] < 0.5 * noise_floors([few])[0]
    assert noise_floors([case(block_errors=((0.0, 0.0),))]) == (math.inf, math.inf)
    together = noise_floors([few])
    assert together[1] > together[0], "errors of both sides add up in a speedup"


def test_speedup_is_tau_over_r_where_requests_pay_nothing_once():
    one = case(plain=3.0)
    assert one.measured_r == pytest.approx((2.0 * 0.9 / 10) / (3.0 * 0.9 / 30))
    assert one.measured_speedup == pytest.approx(1.5)


def test_all_that_is_shown_is_in_the_json_document():
    summary = local_summary(found(case(), case(total_floor=math.inf)))
    told = json.loads(json.dumps(summary, allow_nan=False))
    assert told["cases"][1]["noise_floor"]["total"] is None
    assert told["cases"][0]["speculative"]["error"] == 0
    assert {"speedup", "round_cost_ratio", "sign", "independent_acceptance"} <= told["cases"][0].keys()


# ------------------------------------------------------------------------------------------------------------ the command


def test_pairs_are_read_and_standard_ones_known():
    assert read_pairs(["smollm2"]) == {"smollm2": list(STANDARD["smollm2"])}
    assert read_pairs(["/a/b+c/model.gguf+skip:10,13@2", "x+self@3"]) == {
        "/a/b+c/model.gguf": [("skip:10,13", 2)],
        "x": [("self", 3)],
    }
    assert read_pairs(["byte_pair+self@3", "byte_pair+self@3"]) == {"byte_pair": [("self", 3)]}


@pytest.mark.parametrize("text", ["byte", "byte_pair+ngram", "byte_pair+ngram@0", "byte_pair+ngram@65", "+self@3", "byte_pair@4"])
def test_a_wrong_pair_is_refused_with_an_example(text):
    with pytest.raises(SpecError, match="TARGET"):
        read_pairs([text])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--local", "--published"], "exactly one must be given"),
        (["--local", "--refit"], "--refit: goes with --published only"),
        (["--published", "--pairs", "byte_pair"], "--pairs: goes with --local only"),
        (["--local", "--pairs", "nonsense"], "must be TARGET+DRAFT@γ"),
        (["--local", "--pairs", "byte_pair+exit:9@4"], "--pairs: draft: exit must name how many layers run, 1 to 3"),
        (["--local", "--minutes", "inf"], "--minutes: must be at most 1440"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_in_one_line(arguments, said):
    code, shown = run_quietly(["validate", *arguments])
    assert code == 2
    assert said in shown
    assert len(shown.strip().splitlines()) == 1


def test_without_torch_one_message_says_how_to_install(monkeypatch):
    for name in [name for name in sys.modules if name == "torch" or name.startswith("calibration.decoding")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, shown = run_quietly(["validate", "--local"])
    assert code == 2
    assert "pip install 'specsim[calibrate]'" in shown


# ------------------------------------------------------------------------------------------------------------- real models


ORDER = LocalOrder(("byte_pair+byte_pair@3", "byte_pair+ngram@8"), 0.0, 12, 2, ("copy-heavy",))
HEADS = LocalOrder(("byte_pair+medusa@6", "byte_pair+eagle@3"), 0.0, 12, 2, ("ordinary",))


@pytest.fixture(scope="module")
def real() -> LocalValidation:
    pytest.importorskip("torch", reason="real models need the calibrate extra")
    return validate_locally(ORDER)


class TestRealModels:
    @pytest.fixture(autouse=True)
    def _needs_torch(self):
        pytest.importorskip("torch", reason="real models need the calibrate extra")

    def test_real_rounds_and_texts_are_those_of_the_replay(self, real):
        assert [(each.draft, each.batch) for each in real.cases] == [
            ("byte_pair", 1),
            ("ngram", 1),
            ("byte_pair", 2),
            ("ngram", 2),
        ]
        assert real.replayed
        assert all(each.texts == (4, 4) for each in real.cases if each.batch == 1)

    def test_predicted_and_measured_have_the_same_terms_and_steps(self, real):
        for each in real.cases:
            for way in (each.plain, each.speculative):
                assert way.predicted.steps == way.measured.steps
                assert set(way.measured.terms) - set(way.predicted.terms) <= {"outside the phases"}
                assert all(seconds >= 0 for seconds in way.predicted.terms.values())
                assert way.measured.terms["outside the phases"] < 0.5 * way.measured.total_s
            assert each.predicted_speedup == pytest.approx(each.plain.predicted.total_s / each.speculative.predicted.total_s)

    def test_every_pass_was_timed_in_every_block_and_the_floors_are_finite(self, real):
        assert real.machine.blocks == 2
        assert all(len(each.block_errors) == 2 and math.isfinite(each.total_floor) for each in real.cases)

    def test_the_page_the_numbers_and_the_figure_are_written(self, real, tmp_path: Path):
        written = {path.name for path in write_local_validation(real, tmp_path)}
        assert written == {"local_validation.md", "local_validation.json", "local_validation.png"}
        page = (tmp_path / "local_validation.md").read_text(encoding="utf-8")
        assert "figures/local_validation.png" in page
        assert page.count("byte_pair, 3") == 6

    def test_heads_are_timed_and_predicted_term_by_term(self):
        heads = validate_locally(HEADS)
        assert heads.replayed
        assert len(heads.cases) == 4
        for each in heads.cases:
            told, found = each.speculative.predicted, each.speculative.measured
            assert told.steps == found.steps
            assert set(found.terms) - {"outside the phases"} == set(told.terms)
            assert ("draft prefill" in told.terms) == (each.draft == "eagle")
            assert 0.3 < told.terms["draft"] / found.terms["draft"] < 3, "the same passes, whatever the machine is at"

    def test_a_wrong_trace_is_noticed(self, monkeypatch):
        from calibration import tracing

        def shifted(*args, **kwargs):
            trace = original(*args, **kwargs)
            return replace(trace, acceptance=tuple(1.0 - value for value in trace.acceptance))

        original = tracing.trace_prompt
        monkeypatch.setattr(tracing, "trace_prompt", shifted)
        wrong = validate_locally(replace(ORDER, pairs=("byte_pair+byte_pair@3",), batches=False, prompts_per_kind=1))
        assert not wrong.replayed
        assert wrong.verdict == "fails"

    def test_a_wrong_calibration_is_noticed(self, monkeypatch):
        from calibration.pass_timing import PassTimer

        def doubled(self, asked, context):
            taken = original(self, asked, context)
            return taken._replace(forward_s=3 * taken.forward_s) if asked.last > 1 else taken

        original = PassTimer.time
        monkeypatch.setattr(PassTimer, "time", doubled)
        wrong = validate_locally(replace(ORDER, pairs=("byte_pair+ngram@8",), batches=False))
        assert all(not each.within_bars and each.speculative.error > TOTAL_BAR for each in wrong.cases)

    def test_timed_passes_are_not_counted_and_leave_the_cache_as_it_was(self):
        from calibration.decoding import ForwardCounter
        from calibration.decoding_pass import TARGET, DecodingPass
        from calibration.pairs import load_pair
        from calibration.pass_timing import PassTimer

        pair = load_pair("byte_pair", "byte_pair")
        timer = PassTimer(pair.target, [pair.drafter], [([1, 2, 3], [4, 5])])
        with ForwardCounter([pair.target.module, *pair.drafter.modules]) as counter:
            for masked in (False, True):
                for model in (TARGET, "byte_pair"):
                    taken = timer.time(DecodingPass(model, 1, masked, 3, 3), 20)
                    assert taken.forward_s > 0
        assert counter.forwards == 0
        assert {cache.length for cache in timer._alone.values()} == {20}
        assert {tuple(cache.lengths) for cache in timer._ragged.values()} == {(20,)}

    def test_the_command_prints_and_answers_in_json(self, capsys):
        code = main(["validate", "--local", "--pairs", "byte_pair+ngram@4", "--minutes", "0", "--max-new-tokens", "4", "--json"])
        told = json.loads(capsys.readouterr().out)
        assert code == (1 if told["verdict"] == "fails" else 0)
        assert all(each["rounds_equal"] for each in told["cases"])
        assert len(told["cases"]) == 4
