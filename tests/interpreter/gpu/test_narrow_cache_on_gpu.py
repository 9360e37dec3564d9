"""The engine over the GPU's runner, with keys and values in 8-bit floats, equals transformers over a cache that rounds them."""

from __future__ import annotations

import attrs
import pytest

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.rounding_cache import Rounding
from tests.served import is_greedy
from tests.unit.adapters.pytorch.tiny_models import GEMMA2, TinyModel, make_prompt, make_tiny_model

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # numpy remarks on drafts behind a row's end

TOKENS = 24 if ON_GPU else 3
LENGTHS = [2 + 7 * number for number in range(16)] if ON_GPU else [14, 15, 33]
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS)
FAMILIES = {"llama": {"head_dim": 64}, "gemma2": GEMMA2}


@pytest.fixture(scope="module", params=FAMILIES if ON_GPU else ["gemma2"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    made = make_tiny_model(tmp_path_factory.mktemp("model"), request.param, **FAMILIES[request.param])
    return attrs.evolve(made, spec=made.spec.keeping("fp8"))


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build(device=DEVICE)


@pytest.mark.parametrize("deterministic", [False, True])
def test_greedy_text_equals_a_rounding_reference(
    tiny: TinyModel, model: DecoderModel, deterministic: bool
) -> None:
    prompts = [make_prompt(length, seed=length) for length in LENGTHS]
    served = serve(model, deterministic=deterministic, enforce_eager=not ON_GPU, num_blocks=40, max_width=2)
    reference = Rounding(tiny.reference, tiny.build())
    texts = served.texts(prompts, [GREEDY] * len(prompts))
    assert all(is_greedy(reference, prompt, text) for prompt, text in zip(prompts, texts, strict=True))


def test_a_cached_prefix_changes_nothing(model: DecoderModel) -> None:
    served, prompt = serve(model, deterministic=True, enforce_eager=not ON_GPU), make_prompt(40, seed=1)
    texts = [served.texts([prompt], [GREEDY])[0] for _ in range(2)]
    assert served.engine.state().prefix_hits >= 32
    assert texts[0] == texts[1]
