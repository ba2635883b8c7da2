"""Models of three suites beside eager and torch.compile: `python -m benchmarks.suites --help`.

`models` says what a model and a row are, `torchbench`, `timm_models` and `transformers_models` list
the models, `listed` the rows. `runner` starts a process of `worker` for each model and tells it
which rows to measure; `results` reads what came of it, and `page` writes docs/suites.md.
"""
