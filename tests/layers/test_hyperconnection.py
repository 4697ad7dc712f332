"""Hyperconnections, final mixer and MTP feedback as layers: golden outputs through declared names."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flare.layers.hyperconnection import HyperConnection, StreamMixer, StreamShape
from flare.layers.mtp_feedback import MtpFeedback
from flare.ops.operators import Operators
from tests.goldens import golden
from tests.layers.binding import CPU, draw, random_weights, stored

NAME = "layers.0.attn_hyper_connection"
CASES = [f"qwen38/hyperconnection_{index}" for index in range(3)]
FEEDBACK = [f"qwen38/mtp_feedback_{index}" for index in range(3)]
MATRICES = ("input_mix_weight_down", "input_mix_weight_up", "block_inject_weight")
# Between residual and block input b12x rounds six times, we four: norm, two linears, silu, σ, product, mean. Sums of
# squares of 2^-8 roundings, halved where σ is flat.
BFLOAT16 = 4 * 2**-8


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y.double() - wanted.double()).norm() / wanted.double().norm())


def connection(case: str, operators: Operators = CPU) -> HyperConnection:
    t, params = golden(case)
    layer = HyperConnection(NAME, StreamShape(params["hidden"], 4, params["lowrank"], params["eps"]), "bfloat16")
    weights = {f"{NAME}.{matrix}.weight": t[matrix] for matrix in (*MATRICES, "hc_norm")}
    layer.bind(stored(layer.declare(), weights), operators)
    return layer


def check_connection(operators: Operators, case: str) -> None:
    t, _ = golden(case)
    layer = connection(case, operators)
    x, injection = layer.read(t["state"])
    assert error(x, t["block_input"]) < BFLOAT16
    # a linear's sum in another order, rounded once
    assert error(injection, t["injection_logits"]) < 2**-8
    assert error(layer.write(t["state"], t["block_output"], injection), t["combined"]) < 2**-8


def check_mixer(operators: Operators, case: str) -> None:
    t, params = golden(case)
    layer = StreamMixer("mixer", StreamShape(params["hidden"], 4, params["lowrank"], params["eps"]), "bfloat16")
    names = {"hc_norm": "next_hc_norm", "input_mix_weight_down": "mixer_down", "input_mix_weight_up": "mixer_up"}
    layer.bind(stored(layer.declare(), {f"mixer.{to}.weight": t[of] for to, of in names.items()}), operators)
    assert error(layer.mix(t["combined"]), t["mixer_out"]) < BFLOAT16


def check_feedback(operators: Operators, case: str) -> None:
    t, params = golden(case)
    layer = MtpFeedback("mtp", StreamShape(params["hidden"], 4, 8, params["eps"]), "bfloat16")
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc_embedding", "fc_hidden")
    layer.bind(stored(layer.declare(), {f"mtp.{name}.weight": t[name] for name in names}), operators)
    r0 = layer(t["token_embedding"], t["multi_state"].flatten(1))
    assert r0.shape == (params["tokens"], 4 * params["hidden"])
    # the same roundings; a linear's sum may be taken in another order
    assert error(r0, t["out"].flatten(1)) < 2**-8


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("check", [check_connection, check_mixer])
def test_golden_connections_agree(check, case):
    check(CPU, case)


@pytest.mark.parametrize("case", FEEDBACK)
def test_golden_feedback_agrees(case):
    check_feedback(CPU, case)


def plain_weight(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight - 1, eps, groups)


def one_mean(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight, eps)


def mean_per_stream(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight, eps, 4 if groups == 1 and x.shape[1] > 64 else groups)


def halved(residual: Tensor, y: Tensor, injection: Tensor) -> Tensor:
    return CPU.inject_streams(residual, y / 2, injection)


MUTANTS = {
    "weight not 1 + w": (check_connection, CASES, replace(CPU, zero_centred_norm=plain_weight)),
    "one mean over all streams": (check_connection, CASES, replace(CPU, zero_centred_norm=one_mean)),
    "injection without its 2": (check_connection, CASES, replace(CPU, inject_streams=halved)),
    "division outside silu": (check_mixer, CASES, replace(CPU, scaled_silu=lambda x, by: CPU.scaled_silu(x, 1) / by)),
    "feedback weight not 1 + w": (check_feedback, FEEDBACK, replace(CPU, zero_centred_norm=plain_weight)),
    "feedback normed per stream": (check_feedback, FEEDBACK, replace(CPU, zero_centred_norm=mean_per_stream)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_leave_the_golden_outputs(mutant):
    check, cases, operators = MUTANTS[mutant]
    for case in cases:
        with pytest.raises(AssertionError):
            check(operators, case)


def test_rows_do_not_touch_each_other():
    layer = HyperConnection(NAME, StreamShape(8, 4, 4, 1e-6), "float64")
    layer.bind(stored(layer.declare(), random_weights(layer.declare())), CPU)
    residual, y = draw(6, 32), draw(6, 8, seed=1)
    x, injection = layer.read(residual)
    written = layer.write(residual, y, injection)
    residual[2], y[2] = torch.nan, torch.nan
    poisoned, poisoned_injection = layer.read(residual)
    kept = [0, 1, 3, 4, 5]
    assert (x[kept] - poisoned[kept]).abs().max() < 1e-12
    assert (written[kept] - layer.write(residual, y, poisoned_injection)[kept]).abs().max() < 1e-12


def test_a_final_mixer_declares_no_injection():
    shape = StreamShape(2560, 4, 320, 1e-6)
    mixer = {
        weight.name: weight.shape
        for weight in StreamMixer("hyper_connection_mixer", shape, "bfloat16").declare().weights
    }
    assert mixer == {
        "hyper_connection_mixer.hc_norm.weight": (10240,),
        "hyper_connection_mixer.input_mix_weight_down.weight": (320, 10240),
        "hyper_connection_mixer.input_mix_weight_up.weight": (10240, 320),
    }
    connected = {weight.name: weight.shape for weight in HyperConnection(NAME, shape, "bfloat16").declare().weights}
    assert connected[f"{NAME}.block_inject_weight.weight"] == (4, 10240)
    feedback = {weight.name: weight.shape for weight in MtpFeedback("mtp", shape, "bfloat16").declare().weights}
    assert feedback == {
        "mtp.pre_fc_norm_embedding.weight": (2560,),
        "mtp.pre_fc_norm_hidden.weight": (10240,),
        "mtp.fc_embedding.weight": (2560, 2560),
        "mtp.fc_hidden.weight": (2560, 2560),
    }
