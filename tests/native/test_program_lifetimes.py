"""What a program holds and for how long, and that failures release it."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch

from tests.native.leaks import blocks_kept
from tests.native.test_program import F32, call, const, launch, one_kernel, program, settle, vector


class TestFailures:
    def failing(self, log: list[Any]) -> Any:
        def fail(x: torch.Tensor) -> None:
            log.append(weakref.ref(x))
            raise KeyError("from the library")

        return program(
            [vector("input"), vector("library"), vector("output"), vector("arena", 2)],
            [
                call(torch.sin, ("buffer", 0), targets=(1,)),
                ("allocate", 2),
                launch("add_one", 1, 3),
                call(fail, ("buffer", 1)),
            ],
            [("buffer", 2)],
            expressions=(const(8), const(1), const(0), const(64)),
            arena=3,
        )

    def test_everything_is_released(self):
        log: list[Any] = []
        run, x = self.failing(log), torch.zeros(8)
        before = sys.getrefcount(x), sys.getrefcount(run)
        for _ in range(100):
            with pytest.raises(KeyError, match="from the library"):
                run(x)
        settle()
        assert (sys.getrefcount(x), sys.getrefcount(run)) == before
        assert all(reference() is None for reference in log)
        assert torch.is_grad_enabled()

    def test_wrong_inputs_are_refused(self):
        run = one_kernel()
        with pytest.raises(TypeError, match="1 inputs was given 2"):
            run(torch.zeros(8), torch.zeros(8))
        with pytest.raises(TypeError, match="must be a tensor, not <class 'int'>"):
            run(3)
        with pytest.raises(TypeError, match="keyword"):
            run(x=torch.zeros(8))

    def test_an_output_that_was_never_made_is_an_error(self):
        run = program([vector("output")], [], [("buffer", 0)], inputs=0)
        with pytest.raises(SystemError, match="never made"):
            run()

    @pytest.mark.parametrize(
        "parts",
        [
            dict(buffers=[("nowhere", F32, (), (), 0)]),
            dict(buffers=[vector("input", 1)]),
            dict(buffers=[("input", F32, (0,), (), 0)]),
            dict(buffers=[("input", F32, (9,), (1,), 0)]),
            dict(buffers=[("input", "float", (0,), (1,), 0)]),
            dict(steps=[("allocate", 0)]),
            dict(steps=[("allocate", 1, 1)], buffers=[vector("input"), vector("output")]),
            dict(steps=[("allocate", 1, 2)], buffers=[vector("input"), vector("output")]),
            dict(steps=[("dance", 0)]),
            dict(steps=[("kernel", 0, (), 0, 1.0, 1, -1, ())]),
            dict(steps=[(*launch("add_one", 0, 0), (), -1, (1,))]),
            dict(steps=[(*launch("add_one", 0, 0), (), -1, (1, 9))]),
            dict(steps=[call(print, ("view", 0))]),
            dict(steps=[call(print, ("list", (("int", 9),)))]),
            dict(outputs=[("buffer", 1)]),
        ],
    )
    def test_malformed_descriptions_are_refused(self, parts):
        whole: dict[str, Any] = {"buffers": [vector("input")], "steps": [], "outputs": []} | parts
        with pytest.raises((ValueError, TypeError, AttributeError)):
            program(**whole)


class TestLifetimes:
    def test_calls_leak_nothing(self, allocation):
        run, x = one_kernel(), torch.zeros(8)
        run(x)
        before = sys.getrefcount(x)
        assert blocks_kept(lambda: run(x), times=1000) < 100
        assert sys.getrefcount(x) == before

    def test_a_program_frees_what_it_holds(self):
        function = type("Function", (), {"__call__": lambda self, x: x + 1})()
        constant = torch.zeros(8)
        run = program(
            [vector("constant"), vector("library")],
            [call(function, ("buffer", 0), targets=(1,))],
            [("buffer", 1)],
            inputs=0,
            constants=(constant,),
        )
        assert run()[0].tolist() == [1] * 8
        function.cycle = run
        references = weakref.ref(function), weakref.ref(run), weakref.ref(constant)
        del function, run, constant
        settle()
        assert [reference() for reference in references] == [None] * 3

    def test_a_program_may_be_dropped_while_it_runs(self):
        holder: list[Any] = []
        holder.append(
            program(
                [vector("input"), vector("library")],
                [
                    call(
                        lambda x: (holder.clear(), gc.collect(), x + 1)[2],
                        ("buffer", 0),
                        targets=(1,),
                    )
                ],
                [("buffer", 1)],
            )
        )
        assert holder[0](torch.zeros(8))[0].tolist() == [1] * 8

    def test_a_call_within_the_call_has_a_frame_of_its_own(self):
        programs: list[Any] = []

        def inner(x: torch.Tensor) -> torch.Tensor:
            return programs[0](x + 1)[0] if x[0] < 3 else x.clone()

        programs.append(
            program(
                [vector("input"), vector("arena", 2), vector("library"), vector("output")],
                [
                    launch("add_one", 0, 1),
                    call(inner, ("buffer", 0), targets=(2,)),
                    ("allocate", 3),
                    launch("double", 1, 3),
                ],
                [("buffer", 3), ("buffer", 2)],
                expressions=(const(8), const(1), const(0), const(64)),
                arena=3,
            )
        )
        for start in range(4):
            outer, _ = programs[0](torch.full((8,), float(start)))
            assert outer.tolist() == [2.0 * (start + 1)] * 8
