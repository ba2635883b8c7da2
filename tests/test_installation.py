"""Programs written for torch.compile that run unchanged: `ingot.install`, `python -m ingot run`."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import installation
from ingot.compiler import Compiler

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(installation, "_said", set())
    before = torch.compile
    ingot.install()
    yield
    ingot.uninstall()
    assert torch.compile is before


def options_of(compiled: Any) -> Any:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.options


def test_a_function_and_a_decorator() -> None:
    compiled = torch.compile(torch.sin)

    @torch.compile(fullgraph=True, dynamic=True)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]

    assert options_of(scaled).fullgraph and options_of(scaled).dynamic
    assert torch.allclose(compiled(X), X.sin())
    assert torch.equal(scaled(X), X * 3)
    assert Compiler.of(torch.compiler.compile(scaled)) is not None


def test_installing_twice_is_installing_once() -> None:
    ingot.install()
    ingot.uninstall()
    assert Compiler.of(torch.compile(torch.sin, backend="eager")) is None


def test_a_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled: Any = torch.compile(model)
    assert isinstance(compiled, nn.Sequential) and compiled._orig_mod is model
    assert list(compiled.state_dict()) == ["0.weight", "0.bias"]
    assert torch.allclose(compiled(X), model(X), atol=1e-6)


def test_a_module_loads_what_torch_compile_has_saved() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    saved = {f"_orig_mod.{key}": value + 1 for key, value in model.state_dict().items()}
    compiled: Any = torch.compile(model)
    assert str(compiled.load_state_dict(saved)) == "<All keys matched successfully>"
    assert torch.equal(model[0].bias, saved["_orig_mod.0.bias"])
    with pytest.raises(RuntimeError, match="Missing key"):
        compiled.load_state_dict({"_orig_mod.1.bias": torch.zeros(4)})


def test_a_module_that_is_compiled_in_place() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    expected = model(X)
    model.compile(fullgraph=True)
    assert options_of(model._compiled_call_impl).fullgraph
    assert torch.allclose(model(X), expected, atol=1e-6)
    assert ingot.explain(model._compiled_call_impl)(X).graph_count == 1
    pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize(
    ("options", "mode", "freeze"),
    [
        ({"triton.cudagraphs": True}, "reduce-overhead", False),
        ({"max_autotune": True, "shape_padding": True}, "max-autotune-no-cudagraphs", False),
        ({"max_autotune": True, "triton.cudagraphs": True}, "max-autotune", False),
        ({"freezing": True, "triton.cudagraphs": False}, "default", True),
        (None, "default", False),
    ],
)
def test_options_of_inductor(options: Any, mode: str, freeze: bool, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "ingot"):
        found = options_of(torch.compile(torch.sin, options=options))
    assert (found.mode, found.freeze, found.backend) == (mode, freeze, "ingot")
    assert not caplog.records


def test_what_has_no_counterpart_is_said_once(caplog: Any) -> None:
    options = {"max_fusion_size": 8, "aggressive_fusion": True}
    with caplog.at_level(logging.WARNING, "ingot"):
        for _ in range(2):
            torch.compile(torch.sin, options=options)
            torch.compile(torch.sin, mode="lite")
    first, second = [record.getMessage() for record in caplog.records]
    assert "aggressive_fusion, max_fusion_size" in first and "'lite'" in second


def test_other_backends_get_the_graphs_of_ingot() -> None:
    seen = []

    def counting(gm: Any, example_inputs: Any) -> Any:
        seen.append(len(example_inputs))
        return gm.forward

    for backend in (counting, "eager", "aot_eager", "aot_eager_decomp_partition"):
        compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
        assert torch.allclose(compiled(X), X.sin() + 1)
        assert Compiler.of(compiled) is not None
    assert seen == [1]


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="shapes"):
        torch.compile(torch.sin, no_shapes=True)
    with pytest.raises(TypeError, match="same parameter"):
        ingot.compile(torch.sin, model=torch.sin)
    with pytest.raises(ValueError, match="recompile_limit must be a positive int"):
        ingot.compile(torch.sin, recompile_limit=0)
    with pytest.raises(TypeError, match="isolate_recompiles must be a bool"):
        ingot.compile(torch.sin, isolate_recompiles=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name must be a str"):
        ingot.compile(torch.sin, name=3)  # type: ignore[arg-type]


def test_transformers_generates() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=99, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model, words = transformers.LlamaForCausalLM(config).eval(), torch.randint(3, 99, (1, 5))
    how = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(words, **how)
    compiling = transformers.CompileConfig(mode="reduce-overhead")
    compiling._compile_all_devices = True  # else on GPUs alone
    found = model.generate(words, cache_implementation="static", compile_config=compiling, **how)
    assert torch.equal(found, expected)
    compiler = Compiler.of(model._compiled_call)
    assert compiler is not None and len(compiler.entries) == 1
    assert compiler.compilations[0].break_ is None


PROGRAM = """
    import pickle, sys
    import torch

    class Point:
        pass

    @torch.compile
    def negated(x):
        return -x if torch.compiler.is_compiling() else x

    if __name__ == "__main__":
        print(sys.argv[1:], __name__, float(negated(torch.ones(()))))
        print(type(pickle.loads(pickle.dumps(Point()))) is Point)
        print("torch._dynamo" in sys.modules)
        if "--fail" in sys.argv:
            raise KeyError("it fails")
        sys.exit(len(sys.argv) - 1)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    command = [sys.executable, "-m", "ingot", "run", *arguments]
    path = [str(Path(__file__).parent.parent), str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": ":".join(path)}
    )


@pytest.mark.parametrize("target", [("program.py",), ("-m", "program")])
def test_running_a_program(target: tuple[str, ...], tmp_path: Path) -> None:
    *flags, name = target
    place = name if flags else str(tmp_path / name)
    done = run(tmp_path, *flags, place, "--rate", "3")
    lines = done.stdout.splitlines()
    assert lines == ["['--rate', '3'] __main__ -1.0", "True", "False"], done.stderr
    assert done.returncode == 2


def test_a_program_that_fails(tmp_path: Path) -> None:
    done = run(tmp_path, str(tmp_path / "program.py"), "--fail")
    assert done.returncode == 1 and "KeyError: 'it fails'" in done.stderr
    assert "running.py" not in done.stderr and "runpy" not in done.stderr
    missing = run(tmp_path, str(tmp_path / "missing.py"))
    assert missing.returncode == 2 and "there is no file" in missing.stderr
