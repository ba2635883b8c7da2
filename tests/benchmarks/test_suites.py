"""benchmarks.suites: the list, that its models can be built and trained, that runs resume and say
what is broken, and that the page has the figures of the results."""

from __future__ import annotations

import importlib.util
import io
import json
import threading
import time

import pytest
import torch
from torch import nn

from benchmarks.suites import __main__ as command
from benchmarks.suites import causes, judged, listed, page, plot, results, runner, worker
from benchmarks.suites.models import LOSSES, Model, Row, Training, built, drawn, made
from tests.long import long

CPU = torch.device("cpu")


# -- the list --------------------------------------------------------------------------------------


def test_there_are_enough_models_and_rows():
    rows = listed.all_rows()
    assert len(listed.MODELS) >= 180
    assert len({row.name for row in rows}) == len(rows) >= 450
    filled = [row for row in rows if row.full and row.mode == listed.REPLAYED]
    bf16 = [row for row in filled if row.dtype == "bfloat16"]
    for direction in ("inference", "training"):
        assert len({row.model for row in bf16 if row.direction == direction}) >= 120
    wide = [model for model in listed.MODELS.values() if model.part == "wide"]
    assert len(wide) >= 40
    assert {model.suite for model in wide} == set(command.SUITES)
    assert set(listed.HALVES) <= set(listed.MODELS)


def test_the_list_is_the_one_that_was_decided():
    """A new row is added by `--decide`; a line of the file is never removed."""
    there = listed.decided()
    assert len(set(there)) == len(there)
    assert [row.name for row in listed.all_rows() if row.name not in there] == []


SMALL = ["soft_actor_critic", "deepfm", "dcgan", "mnist", "maml", "dp_cifar"]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_is_trained(name):
    builds_and_trains(listed.MODELS[f"torchbench/{name}"], batch=2)


@long
@pytest.mark.parametrize("name", listed.MODELS)
def test_a_model_is_trained(name):
    model = listed.MODELS[name]
    if model.missing:
        pytest.skip(model.missing)
    builds_and_trains(model, batch=1 if model.part == "wide" else 2)


def builds_and_trains(model, batch):
    """Its result is the same twice, it is finite, and parameters have gradients of it."""
    row = Row(model.suite, model.name, "training", "float32", batch, True, "default")
    module, draw = made(model, row, CPU)
    args = draw(0)
    with torch.no_grad() if model.inference else torch.enable_grad():
        again = module(*args).detach()
    loss = module(*args)
    loss.backward()
    assert loss.isfinite() and torch.equal(loss.detach(), again)
    assert any(p.grad is not None and p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("package", ["timm", "torchvision", "transformers"])
def test_names_of_packages_are_there(package):
    """Each model that the package builds is one that it has."""
    if not importlib.util.find_spec(package):
        pytest.skip(f"needs {package}")
    if package == "timm":
        import timm

        names = {model.name for model in listed.MODELS.values() if model.suite == "timm"}
        assert names <= set(timm.list_models())
    else:
        some = [model for model in listed.MODELS.values() if model.needs == package]
        assert len(some) >= 10
        with torch.device("meta"):
            assert isinstance(some[0].network(), nn.Module)


def test_without_its_package_a_model_is_skipped_with_a_reason(tmp_path):
    model = Model("timm", "nothing", nn.Identity, drawn, 1, 1, needs="no_such_package", seconds=1)
    lines = run_here([(model, [row_of(model)])], tmp_path)
    assert [line["problem"] for line in lines] == ["needs the package no_such_package"]
    assert lines[0]["skipped"]


def test_losses_have_targets_of_the_results_shapes():
    scores = torch.randn(2, 5, 7)
    (classes,) = LOSSES["classes"].targets(scores)
    assert classes.shape == (2, 5) and int(classes.max()) < 7
    (pixels,) = LOSSES["pixels"].targets(torch.randn(2, 3, 4, 4))
    assert pixels.shape == (2, 4, 4) and int(pixels.max()) < 3
    targets = LOSSES["squares"].targets((scores, scores[0]))
    assert [t.shape for t in targets] == [(2, 5, 7), (5, 7)]
    training = Training(nn.Identity(), 1, "squares")
    assert float(training(scores, scores)) == 0.0


# -- judging ---------------------------------------------------------------------------------------


def test_departures():
    exact = [torch.tensor([3.0, 4.0]), torch.tensor([float("inf")])]
    near = [torch.tensor([3.0, 4.5]), torch.tensor([float("inf")])]
    assert judged.departure(judged.parts(exact, exact)) == 0.0
    assert judged.departure(judged.parts(near, exact)) == pytest.approx(0.1)
    wrong = [torch.tensor([3.0, float("nan")]), exact[1]]
    assert judged.departure(judged.parts(wrong, exact)) == float("inf")
    with pytest.raises(ValueError, match="shape"):
        judged.parts([torch.zeros(3), exact[1]], exact)


def test_chunks_are_added_up(monkeypatch):
    value, exact = torch.randn(2, 50), torch.randn(2, 50)
    whole = judged.parts([value], [exact])[0]
    monkeypatch.setattr(judged, "CHUNK", 7)
    assert judged.parts([value], [exact])[0] == pytest.approx(whole)


def test_near_is_as_near_as_eager():
    assert judged.is_near([1.1e-3], [1e-3]) and not judged.is_near([1.3e-3], [1e-3])
    assert judged.is_near([3e-7], [0.0]) and not judged.is_near([1e-6], [0.0])
    # one draw that a ReLU threw off, of five
    assert judged.is_near([1e-3, 1e-3, 1e-3, 1e-3, 9e-3], [1e-3] * 5)
    assert not judged.is_near([float("nan")], [1e-3])


def test_a_lost_gradient_is_found_though_it_is_small():
    large, tiny = torch.full((1000,), 100.0), torch.full((4,), 1e-4)
    eager = judged.parts([large, tiny * 1.01], [large, tiny])
    mine = judged.parts([large, torch.zeros(4)], [large, tiny])
    assert judged.departure(mine) < 1e-6
    assert judged.lost(mine, eager) == [1] and judged.lost(eager, eager) == []


# -- one row, in this process ----------------------------------------------------------------------


def little(build=None, draw=None, **more) -> Model:
    """A model of two layers."""

    def network():
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def numbers(n):
        return (torch.randn(n, 8),)

    return Model("torchbench", "little", build or network, draw or numbers, 4, 4, seconds=1, **more)


def row_of(model, direction="inference", dtype="float32", batch=3):
    return Row(model.suite, model.name, direction, dtype, batch, True, "default")


@pytest.fixture
def only_ingot(monkeypatch):
    """Without torch.compile, which needs a C++ compiler and ten seconds."""
    monkeypatch.setattr(worker, "COMPILERS", {"Ingot": worker.COMPILERS["Ingot"]})
    monkeypatch.setattr(worker, "MEASURED", 0.01)


@pytest.mark.parametrize("direction", ["inference", "training"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_has_figures(direction, dtype, only_ingot):
    model = little()
    need, ready, found = list(worker.answers(row_of(model, direction, dtype), model, CPU, True))
    assert need["need"] > 0 and ready == {"ready": True}
    mine = found["peers"]["Ingot"]
    assert mine["right"] and mine["lost"] == [] and mine["graphs"] == 1 and mine["cold"]
    assert len(mine["seconds"]) >= worker.ROUNDS[0] and mine["first"] > 0 and mine["peak"] > 0
    assert mine["departures"][0] <= max(1e-6, 1.2 * found["peers"]["eager"]["departures"][0])
    assert json.loads(json.dumps(found)) == found


def test_a_wrong_result_is_not_right(only_ingot, monkeypatch):
    def wrong(module, mode=None):
        return lambda *args: module(*args) * 1.001

    monkeypatch.setattr(worker, "COMPILERS", {"Ingot": wrong})
    monkeypatch.setattr(worker, "state", lambda fn: {})
    *_, found = worker.answers(row_of(little()), little(), CPU, True)
    mine = found["peers"]["Ingot"]
    assert mine["right"] is False and len(mine["departures"]) == judged.DRAWS


def test_a_broken_peer_has_a_problem_and_the_others_have_figures(only_ingot, monkeypatch):
    def broken(module, mode=None):
        raise RuntimeError("no such luck")

    monkeypatch.setitem(worker.COMPILERS, "torch.compile", broken)
    *_, found = worker.answers(row_of(little()), little(), CPU, True)
    assert found["peers"]["torch.compile"]["problem"] == "RuntimeError: no such luck"
    assert found["peers"]["Ingot"]["right"] and "seconds" not in found["peers"]["torch.compile"]


def test_a_broken_row_has_its_problem():
    def network():
        raise ValueError("no such model")

    model = little(network)
    (found,) = worker.answers(row_of(model), model, CPU, True)
    assert found == {"problem": "ValueError: no such model", "memory": False}


def test_a_network_is_built_with_nothing_left_to_chance():
    model = little(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)))
    network = built(model, CPU).train()
    (x,) = drawn(model, 2, CPU)
    assert torch.equal(network(x), network(x))
    assert torch.equal(network(x), built(model, CPU)(x))


# -- many rows -------------------------------------------------------------------------------------


class Fake:
    """A process that answers at once: of the rows it is told to, or with what `problems` have."""

    started: list[str] = []
    problems: dict[str, list[dict]] = {}
    signals: list[tuple[str, int]] = []

    def __init__(self, model, settings, folder):
        self.name, self.alive = model.name, True
        self.started.append(model.name)
        self.process = self

    def ask(self, line, until):
        if line == "measure":
            return {"peers": {"Ingot": {"seconds": [1.0]}}}
        if line == "compile":
            waiting = self.problems.get(self.name)
            return waiting.pop(0) if waiting else {"ready": True}
        return {"need": 10}

    def signal(self, number):
        self.signals.append((self.name, number))

    def go_on(self, seconds):
        assert 0 <= seconds < 5
        self.signal(runner.signal.SIGCONT)

    def end(self):
        self.alive = False

    def wait(self):
        return 0


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setattr(runner, "Worker", Fake)
    monkeypatch.setattr(runner, "SETTLE", 0.0)
    for name, value in (("started", []), ("problems", {}), ("signals", [])):
        monkeypatch.setattr(Fake, name, value)


def run_here(queue, folder, **more):
    """The lines of a run."""
    options = {"jobs": 2, "seconds": 60.0, "limit": 20.0, "capacity": 100, "code": "c0de"} | more
    settings = runner.Settings(device="cpu", results=folder / "results.jsonl", **options)
    runner.run(list(queue), settings, lambda text: None)
    return list(results.load([settings.results]).values())


def queue_of(*names, rows=2):
    queue = []
    for name in names:
        model = Model("torchbench", name, nn.Identity, drawn, 4, 4, seconds=1)
        queue.append((model, [row_of(model, batch=n) for n in range(1, rows + 1)]))
    return queue


def test_every_row_has_a_line(fakes, tmp_path):
    lines = run_here(queue_of("a", "b", "c"), tmp_path)
    assert len(lines) == 6 and all("peers" in line for line in lines)
    assert sorted(Fake.started) == ["a", "b", "c"]
    line = next(line for line in lines if line["model"] == "b" and line["batch"] == 2)
    assert line["row"] == "torchbench/b inference float32 full=2 default"
    assert line["code"] == "c0de" and line["wall"] >= 0


def test_what_lacked_memory_is_tried_again_with_all_of_it(fakes, tmp_path):
    Fake.problems["a"] = [{"problem": "out of memory", "memory": True}]
    lines = run_here(queue_of("a", "b"), tmp_path)
    assert len(lines) == 4 and all("peers" in line for line in lines)
    Fake.problems["a"] = 3 * [{"problem": "out of memory", "memory": True}]
    (line,) = run_here(queue_of("a", rows=1), tmp_path / "other")
    assert line["problem"] == "out of memory"


def test_no_row_is_begun_that_does_not_fit_into_the_time(fakes, tmp_path):
    assert run_here(queue_of("a"), tmp_path, seconds=runner.END + 0.5) == []
    assert not (tmp_path / "results.jsonl").exists()


def test_others_are_stopped_while_one_measures(fakes):
    shared = runner.Run(runner.Settings("cpu", runner.ROOT, 2, 60, 20, 100, ""), lambda text: None)
    one, two = (shared.start(model, None) for model, _ in queue_of("a", "b"))
    with shared.alone(one):
        assert Fake.signals == [("b", runner.signal.SIGSTOP)]
    assert Fake.signals[1:] == [("b", runner.signal.SIGCONT)]


def test_stops_are_no_part_of_a_first_call(tmp_path, monkeypatch):
    told = tmp_path / "stopped"
    told.write_text("1.5")
    monkeypatch.setenv(worker.STOPPED, str(told))
    assert worker.STOPPED == runner.STOPPED

    def call():
        time.sleep(0.05)
        told.write_text("1.54")  # of which 40 ms while this ran

    assert 0.01 <= worker.first_seconds(call, CPU) < 1
    assert worker.first_seconds(lambda: told.write_text("9.54"), CPU) < -7


def test_memory_is_shared_in_order():
    memory, order = runner.Memory(100), []

    def take(name, need, seconds=0.0):
        with memory.taken(need):
            order.append(name)
            time.sleep(seconds)

    with memory.taken(60):
        threads = []
        for name, need in (("too much", 1000), ("little", 10)):
            threads.append(threading.Thread(target=take, args=(name, need)))
            threads[-1].start()
            while len(memory.waiting) < len(threads):
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join(5)
    assert order == ["too much", "little"] and memory.held == 0


@pytest.mark.parametrize(
    "script, problem",
    [
        ("echo KeyError: this >&2; exit 3", "process ended with status 3: KeyError: this"),
        ("kill -SEGV $$", "process ended with SIGSEGV: no output"),
        ("exec sleep 60", "no result after 0 s"),
        ('read line; echo \'{"problem": "no luck"}\'', "no luck"),
    ],
)
def test_a_process_that_dies_or_hangs_is_a_problem(script, problem, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(runner.sys, "executable", str(program))
    limit = 0.3 if "sleep" in script else 30.0
    (line,) = run_here(queue_of("a", rows=1), tmp_path, jobs=1, limit=limit)
    assert line["problem"] == problem


def test_a_worker_answers_line_by_line(only_ingot, monkeypatch):
    """Two rows, of which the first one is broken."""
    model = little()
    monkeypatch.setitem(listed.MODELS, "torchbench/little", model)
    broken = row_of(model, dtype="no_dtype")
    lines = [json.dumps(vars(broken)), json.dumps(vars(row_of(model))), "compile", "measure"]
    said: list[dict] = []
    worker.serve("torchbench/little", CPU, io.StringIO("\n".join(lines) + "\n"), said.append)
    assert [list(answer)[0] for answer in said] == ["problem", "need", "ready", "peers"]
    assert "no_dtype" in said[0]["problem"] and not said[3]["peers"]["Ingot"]["cold"]


# -- the command -----------------------------------------------------------------------------------


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path):
    file = tmp_path / "results.jsonl"
    options = command.parse(["--device", "cuda", "--results", str(file), "--only", "dlrm"])
    ((model, rows),) = command.chosen(options)
    assert model.name == "dlrm" and len(rows) == len(listed.rows(model))
    lines = [{"row": rows[0].name, "peers": {}}, {"row": rows[1].name, "problem": "lost"}]
    text = "\n".join(map(json.dumps, lines)) + '\n{"row": "cut sho'
    file.write_text(text)
    ((_, left),) = command.chosen(options)
    assert left == rows[2:]
    options.retry = True
    assert command.chosen(options)[0][1] == rows[1:]
    options.again = True
    assert command.chosen(options)[0][1] == rows


def test_shards_are_the_whole(tmp_path):
    def names(*more):
        arguments = ["--device", "cuda", "--results", str(tmp_path / "none"), *more]
        return [model.name for model, _ in command.chosen(command.parse(arguments))]

    parts = [names("--suite", "timm", "--shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(names("--suite", "timm"))
    assert min(map(len, parts)) >= 15
    with pytest.raises(SystemExit):
        command.parse(["--shard", "4/3"])


def test_on_a_cpu_batches_are_small():
    row = listed.rows(listed.MODELS["torchbench/dlrm"])[0]
    assert command.on_device(row, "cpu").batch == command.CPU_BATCH
    assert command.on_device(row, "cuda") == row


# -- the page --------------------------------------------------------------------------------------


def line_of(row, eager=4.0, compiled=2.0, mine=1.0, **more):
    """As a worker leaves it, with constant times."""
    peers = {}
    for name, seconds in (("eager", eager), ("torch.compile", compiled), ("Ingot", mine)):
        peers[name] = {"seconds": [seconds] * 5, "peak": 100, "first": 10 * seconds}
        peers[name] |= {"departures": [1e-3], "graphs": 1, "right": True, "lost": []}
    peers["Ingot"] |= {"cold": True, "reasons": [], "peak": 50, "held": 10}
    peers["torch.compile"]["held"] = 40
    about = {"device": "a card", "torch": "2.11.0"}
    line = {"row": row.name, **vars(row), "code": "c0de", "wall": 36.0}
    return line | {"peers": peers, "about": about} | more


@pytest.fixture
def rows():
    return [row for row in listed.all_rows() if row.model in ("dlrm", "vit_base_patch16_224")]


def written(lines, tmp_path):
    page.write({line["row"]: line for line in lines}, tmp_path / "suites.md")
    return (tmp_path / "suites.md").read_text()


def test_the_page_has_the_results_figures(rows, tmp_path):
    lines = [line_of(row) for row in rows]
    text = written(lines, tmp_path)
    assert "Nothing has been measured" not in text and "**Not whole.** " in text
    for mode in ("default", "replayed"):
        for group in ("inference, filled card", "training, filled card", "inference, batch 1"):
            assert f"| {mode}: {group}, bfloat16 | 2 | 2.00 | 4.00 | 0 (0.0%) |" in text
    of_timm = sum(row.suite == "timm" for row in rows)
    assert f"| timm | {of_timm} | 2.00 | 4.00 | 0 (0.0%) |" in text
    assert f"{len(rows)} rows: a card, torch 2.11.0." in text
    assert f"{len(rows)} of {len(rows)} rows have right results" in text
    assert "| inference | 0.50 | 1.00 | 0.25 | 2.00 | 10.0 | 20.0 |" in text
    assert f"Captured as one graph: {len(rows)} of {len(rows)} rows by Ingot" in text
    assert (tmp_path / "suites.svg").read_text().count("<title>") == 4


def test_slower_rows_are_named_with_causes(rows, tmp_path, monkeypatch):
    lines = [line_of(row) for row in rows]
    lines[0] = line_of(rows[0], mine=2.5)
    lines[1] = line_of(rows[1]) | {"peers": {}, "problem": "out of memory"}
    monkeypatch.setitem(causes.CAUSES, rows[0].name, "too many registers")
    text = written(lines, tmp_path)
    assert f"2 of {len(rows)} rows" in text
    ratio = "0.80 (0.80-0.80) | 1.60 (1.60-1.60) | 0.80 (0.80-0.80)"
    assert f"| {rows[0].name} | {ratio} | too many registers |" in text
    assert f"| {rows[1].name} | – | – | – | out of memory |" in text
    assert f"- out of memory: {rows[1].name}" in text


def test_a_wrong_row_is_named(rows, tmp_path):
    line = line_of(rows[0])
    line["peers"]["Ingot"] |= {"right": False, "departures": [0.5]}
    text = written([line], tmp_path)
    assert "0 of 1 rows have right results" in text
    assert f"| {rows[0].name} | 5.0e-01 | 1.0e-03 | 1.0e-03 | 0 |" in text


def test_a_removed_row_counts_as_slower(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(listed, "decided", lambda: [rows[0].name, "timm/gone inference"])
    text = written([line_of(rows[0])], tmp_path)
    assert "1 of 2 rows (50.0%)" in text
    assert "These count as slower:\n\n- timm/gone inference" in text


def test_the_committed_page_is_not_older_than_the_list():
    """Of the list, whatever it has of results."""
    committed = (page.listed.DECIDED.parents[2] / "docs" / "suites.md").read_text("utf-8")
    assert page.introduction() in committed
    assert "\n".join(page.models()).strip() in committed


def test_the_plot_has_every_point():
    text = plot.svg({"all": [("timm", "a<b", 1.5, 3.0), ("torchbench", "c", 2.0, 0.5)]})
    assert text.count("<title>") == 2 and "a&lt;b: Ingot 3.00, torch.compile 1.50 x eager" in text
