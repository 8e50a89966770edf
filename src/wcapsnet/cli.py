"""The command line: `wcapsnet demo | train | sweep | ablate | tables | evaluate | predict | explain | report |
explore | bench | list`."""

from __future__ import annotations

import json
import os
import sys
import threading
import webbrowser
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import torch
import typer
from rich.markup import escape
from rich.progress import Progress as Bar

from . import __version__, cache, show
from .atomic import write_text
from .bench.command import EXAMPLES, bench
from .classifier import Classifier, Prediction
from .data import DATASETS, MAX_SIDE, Dataset, Split, default_data_dir, image_files, scan_folder
from .data.loader import DeviceSplit
from .deploy import shipped
from .ending import in_a_sentence
from .errors import InputError
from .experiment import Experiment
from .explain import (
    Survey,
    critics,
    explain_capsule,
    explain_image,
    faithfulness,
    nearest,
    probe_levels,
    reroute,
    specialization,
    survey,
    traverse_capsule,
)
from .explain import show as show_explained
from .explore import Explorer, Server
from .kernels import compile as compile_kernels
from .models import MODELS, load
from .network import MIN_SIDE
from .recipes import RECIPES, quick, recipe, suggest
from .recipes.ablations import NUMERALS, TABLES, rows_of
from .recipes.published import PAPER_TABLES
from .report import page as report_page
from .report import tables as paper_tables
from .report.page import figures as report_figures
from .report.page.look import aside, evenly
from .report.page.text import images_of, plural
from .report.records import read_records, shipped_records
from .rounding import percent
from .runs import dataset_of, train_all
from .settings import suggestion, with_setting
from .show import err, out
from .sweep import Sweep, product, with_seeds
from .training.evaluate import Evaluation, evaluate
from .training.precision import choose_device
from .training.progress import clock, make_progress
from .training.run import Run, describe_environment, read_experiment, read_json
from .training.together import MAX_LANES
from .training.trainer import Diverged, Interrupted, Trainer

app = typer.Typer(
    name="wcapsnet",
    help="Wasserstein Routed Capsule Networks: train, evaluate, use.",
    epilog="Start with [bold]wcapsnet demo[/], or with your own pictures: [bold]wcapsnet train FOLDER[/].",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataDir = Annotated[
    Optional[Path],  # noqa: UP045 (typer reads this on Python 3.10)
    typer.Option(
        help="Where data sets lie; else $WCAPSNET_DATA, else ./data. For a run on pictures: where they lie now.",
        show_default=False,
    ),
]
Target = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(
        metavar="RECIPE|FOLDER|RUN",
        help="A recipe (see `wcapsnet list`), a folder of pictures, or a run to repeat.",
        show_default=False,
    ),
]
Epochs = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, help="Length of the schedule; its milestones move along.", show_default=False),
]
BatchSize = Annotated[Optional[int], typer.Option(min=1, help="Images a step.", show_default=False)]  # noqa: UP045
LearningRate = Annotated[Optional[float], typer.Option(help="Learning rate.", show_default=False)]  # noqa: UP045
Size = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help=f"Folders: side, or HEIGHTxWIDTH, pictures are brought to; {MIN_SIDE} to {MAX_SIDE}.", show_default=False
    ),
]
Model = Annotated[str, typer.Option(help=f"Folders: {', '.join(MODELS)}; auto takes the quick one without a GPU.")]
Precision = Annotated[str, typer.Option(help="fp32, bf16; auto: bf16 on a GPU, fp32 else.")]
Kernels = Annotated[str, typer.Option(help="fused, plain; auto: fused kernels where they can be used.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data set if it is not there.")]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="FIELD=VALUE", help="Change any field of experiment.json.", show_default=False),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Open = Annotated[bool, typer.Option("--open", help="Open the report in a browser, where there is a display.")]


Parallel = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        min=1,
        max=MAX_LANES,
        help="Runs trained at the same time on a GPU; 4 unless told otherwise.",
        show_default=False,
    ),
]


def _table(name: str) -> str:
    table = NUMERALS.get(name.upper(), name.lower())
    if table not in TABLES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(TABLES)} (or {', '.join(NUMERALS)}).")
    return table


def _numeral(name: str) -> str:
    named = {table: numeral for numeral, table in NUMERALS.items()}
    numeral = named.get(name.lower(), name.upper())
    if numeral not in (*PAPER_TABLES, "ALL"):
        raise typer.BadParameter(
            f"{name!r} is not one of {', '.join(PAPER_TABLES)}, all (or {', '.join(NUMERALS.values())})."
        )
    return "all" if numeral == "ALL" else numeral


class SplitName(str, Enum):
    train = "train"
    validation = "validation"
    test = "test"


MEAN_IMAGES = 1000  # of which --reroute takes the mean weights, which is then known to 3 % of their spread


def examples(*lines: str) -> str:
    return "[bold]Examples[/]\n\n" + "\n\n".join(lines)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"wcapsnet {__version__} (torch {torch.__version__})")
        raise typer.Exit


@app.command(epilog=examples("wcapsnet demo", "wcapsnet demo --out runs/first"))
def demo(
    out_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Run folder; default runs/demo, or the next free runs/demo-N.", show_default=False),
    ] = None,
    device: Device = "auto",
    epochs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Train for another number of epochs.", show_default=False),
    ] = None,
    opened: Open = False,
    quiet: Quiet = False,
) -> None:
    """Train a small WCapsNet on the digits inside the package, and show what happened."""
    chosen = choose_device(device)
    experiment = recipe("demo")
    if chosen.type == "cuda":
        experiment = replace(experiment, training=replace(experiment.training, precision="bf16"))
    if epochs:
        experiment = replace(experiment, training=experiment.training.with_epochs(epochs))
    trainer = _start(experiment, out_dir, chosen, None, False, quiet)
    show.mean_weights(_run(trainer), trainer.dataset.classes)
    show.next_steps(trainer.run, quiet)
    made = _report_of(trainer, quiet=quiet)
    if opened and made:
        _open(made)


@app.command(
    epilog=examples(
        "wcapsnet train photos/                        one folder per class, or train/ val/ test/ of those",
        "wcapsnet train photos/ --size 48 --epochs 60",
        "wcapsnet train mnist --download",
        "wcapsnet train cifar10 --data-dir ~/data --seed 1",
        "wcapsnet train cifar10-squash                 a row of the paper's tables",
        "wcapsnet train quick --set model.levels.0.capsules=4 --set objective.lambda_ws=0.5",
        "wcapsnet train --resume runs/mnist            go on where it was stopped",
        "wcapsnet train runs/mnist --seed 1            the same experiment again",
    )
)
def train(
    target: Target = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=0, help="Of weights, order, noise.", show_default=False),
    ] = None,
    size: Size = None,
    model: Model = "auto",
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Kernels = "auto",
    data_dir: DataDir = None,
    download: Download = False,
    out_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Run folder; default runs/NAME, or the next free runs/NAME-N.", show_default=False),
    ] = None,
    resume: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="RUN", help="Go on with this run folder.", show_default=False),
    ] = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Train a network: a recipe of the paper, your own pictures, or an earlier experiment again."""
    chosen = choose_device(device)
    if resume is not None:
        given = {
            "a recipe": target,
            "--epochs": epochs,
            "--batch-size": batch_size,
            "--lr": lr,
            "--seed": seed,
            "--size": size,
            "--model": None if model == "auto" else model,
            "--precision": None if precision == "auto" else precision,
            "--kernels": None if kernels == "auto" else kernels,
            "--out": out_dir,
            "--set": settings,
        }
        for name, value in given.items():
            if value is not None and value != []:
                raise InputError(f"--resume goes on with a run as it was begun, so {name} cannot be given with it.")
        trainer = _resume(resume, chosen, data_dir, download, quiet)
        if trainer is None:
            return
    else:
        if target is None:
            raise InputError(
                "Say what to train: a recipe (see `wcapsnet list`), a folder of pictures, or --resume RUN."
            )
        changes = {"batch_size": batch_size, "lr": lr, "seed": seed}
        experiment, data_dir = _asked(
            target, size, model, chosen, data_dir, changes, epochs, precision, kernels, settings
        )
        trainer = _start(experiment, out_dir, chosen, data_dir, download, quiet)
    _run(trainer)
    show.next_steps(trainer.run, quiet)
    _report_of(trainer, quiet=quiet)


@app.command(
    epilog=examples(
        "wcapsnet sweep cifar10 --seeds 3     seeds 0, 1, 2, at the same time on one GPU",
        "wcapsnet sweep mnist --grid training.lr=0.1,0.05 --grid model.nonlinearity=tilt,squash",
        "wcapsnet sweep photos/ --seeds 4,5 --grid training.batch_size=16,32 --epochs 40",
        "wcapsnet sweep runs/photos --seeds 5 --out runs/photos-seeds",
    )
)
def sweep(
    target: Target = None,
    seeds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="N|LIST", help="How many seeds, such as 3, or which, such as 4,5.", show_default=False),
    ] = None,
    grid: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="FIELD=VALUE,…",
            help="Try each of these values of a field of experiment.json; with several, every combination.",
            show_default=False,
        ),
    ] = None,
    parallel: Parallel = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    size: Size = None,
    model: Model = "auto",
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Kernels = "auto",
    data_dir: DataDir = None,
    download: Download = False,
    out_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Folder for all runs; default runs/NAME-sweep.", show_default=False),
    ] = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Train with several seeds and settings; the same command again goes on where it was stopped."""
    chosen = choose_device(device)
    if target is None:
        raise InputError("Say what to train: a recipe (see `wcapsnet list`), a folder of pictures, or a run.")
    changes = {"batch_size": batch_size, "lr": lr}
    experiment, data_dir = _asked(target, size, model, chosen, data_dir, changes, epochs, precision, kernels, settings)
    folder = out_dir or Path("runs") / f"{experiment.name}-sweep"
    planned = product(experiment, grid or [], seeds)
    if not train_all(
        Sweep(folder, planned), chosen, parallel=parallel, data_dir=data_dir, download=download, quiet=quiet
    ):
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "wcapsnet ablate routing cifar10      Table IV with three seeds; or: wcapsnet ablate IV cifar10",
        "wcapsnet ablate nonlinearity mnist --seeds 1 --epochs 10",
        "wcapsnet ablate weighting photos/                 the same question asked of your own pictures",
    )
)
def ablate(
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="weighting (II), nonlinearity (III), routing (IV).", parser=_table),
    ],
    dataset: Annotated[
        str,
        typer.Argument(metavar="RECIPE|FOLDER|RUN", help="A recipe such as cifar10, a folder of pictures, or a run."),
    ],
    seeds: Annotated[
        str, typer.Option(metavar="N|LIST", help="How many seeds, such as 3, or which, such as 4,5.")
    ] = "3",
    parallel: Parallel = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    size: Size = None,
    model: Model = "auto",
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Kernels = "auto",
    data_dir: DataDir = None,
    download: Download = False,
    out_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Folder for all runs; default runs/NAME-TABLE.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train every row of one of the paper's ablations, all else as it is in RECIPE, FOLDER or RUN; the same command
    again goes on where it was stopped."""
    chosen = choose_device(device)
    changes = {"batch_size": batch_size, "lr": lr}
    experiment, data_dir = _asked(dataset, size, model, chosen, data_dir, changes, epochs, precision, kernels, None)
    planned = [
        one for row, variant in rows_of(table, experiment).items() for one in with_seeds(variant, seeds, {"row": row})
    ]
    folder = out_dir or Path("runs") / f"{experiment.name}-{table}"
    if not train_all(
        Sweep(folder, planned),
        chosen,
        parallel=parallel,
        data_dir=data_dir,
        download=download,
        quiet=quiet,
        table=table,
    ):
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "wcapsnet tables                               Tables II to V: ours, from the records of this project",
        "wcapsnet tables IV --records runs/            from your own full-length runs",
        "wcapsnet tables --markdown > tables.md",
    )
)
def tables(
    table: Annotated[
        str,
        typer.Argument(
            metavar="[II|III|IV|V|all]", help="Which table; or by its name, as `ablate` has it.", parser=_numeral
        ),
    ] = "all",
    records: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A folder of runs or records; default: those inside the package.", show_default=False),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """The paper's Tables II to V with ours beside them, and which differences are larger than the noise."""
    if as_markdown and as_json:
        raise InputError("Choose one of --markdown and --json.")
    found, left_out = read_records(records) if records else (shipped_records(), [])
    project = records is None
    built = [paper_tables.build(numeral, found, project) for numeral in PAPER_TABLES if table in (numeral, "all")]
    if as_json:
        typer.echo(json.dumps(paper_tables.as_json(built), ensure_ascii=False))
    elif as_markdown:
        typer.echo(paper_tables.markdown(built), nl=False)
    else:
        show.paper_tables(built)
    if left_out:
        runs = "1 run stands" if len(left_out) == 1 else f"{len(left_out)} runs stand"
        err.print(f"{runs} in no table:", style="yellow")
        show.few(left_out)


@app.command(
    "evaluate",
    epilog=examples(
        "wcapsnet evaluate runs/demo",
        "wcapsnet evaluate runs/demo --split validation --json",
        "wcapsnet evaluate wcapsnet-cifar10 --data-dir ~/data     the number of its model card, to the last image",
    ),
)
def evaluate_command(
    run: Annotated[str, typer.Argument(metavar="RUN|NAME", help="A run folder, or a shipped network.")],
    split: Annotated[SplitName, typer.Option(help="Which part of its data set.")] = SplitName.test,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Measure a run's best weights, or a shipped network, on its own data: nothing needs to be typed again."""
    chosen = choose_device(device)
    if precision not in ("fp32", "bf16"):
        raise InputError(f"--precision is fp32 or bf16, not {precision!r}.")
    classifier, dataset = _with_its_data(run, chosen, data_dir, download, as_json, split.value)
    part = getattr(dataset, split.value)
    result = evaluate(classifier.network, DeviceSplit(part, *classifier.normalization, chosen), precision)
    if as_json:
        facts = {"run": run, "split": split.value, **result.summary(classifier.classes)}
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    out.print(
        f"{split.value} accuracy [bold]{percent(result.accuracy)}%[/] on {len(part.labels):,} images, "
        f"cross entropy {result.loss:.4f}"
    )
    if Run.is_run(Path(run)) and not (begun := Run.open(Path(run))).finished:
        done, epochs = len(begun.metrics()), begun.experiment.training.epochs
        out.print(f"The run is not finished: these are the best weights after {done} of {epochs} epochs.")
    if split == SplitName.test and precision == "fp32" and "test" in classifier.facts:
        right, said = int(result.confusion.diag().sum()), classifier.facts["test"]["correct"]
        out.print(f"{right:,} images right; its model card says {said:,}.")
    show.accuracy_by_class(result, classifier.classes)


@app.command(
    epilog=examples(
        "wcapsnet predict runs/demo digit.png",
        "wcapsnet predict wcapsnet-cifar10 photo.jpg            a shipped network",
        "wcapsnet predict runs/photos holiday/ --csv > answers.csv",
        "cat cat.jpg | wcapsnet predict runs/photos - --json",
    )
)
def predict(
    run: Annotated[
        str, typer.Argument(metavar="RUN|NAME", help="A run folder, a shipped network or a .safetensors file.")
    ],
    pictures: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Files, folders, or - for standard input.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    device: Device = "auto",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Classify pictures: class, probability, and the winning blocks of each level."""
    if as_csv and as_json:
        raise InputError("Choose one of --csv and --json.")
    classifier = load(run, device=str(choose_device(device)))
    sources, empty = _sources(pictures)
    answers, unreadable = _predict_all(classifier, sources, top)
    failures = empty + unreadable
    if as_json:
        typer.echo(json.dumps([show.as_json(a) for a in answers], ensure_ascii=False, indent=2))
    elif as_csv:
        show.predictions_csv(answers, classifier, top)
    elif answers:
        show.predictions(answers)
    for failure in failures:
        err.print(f"error: {failure}", style="red", soft_wrap=True, markup=False)
    if failures:
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "wcapsnet explain runs/demo digit.png              weights, contributions, what switching blocks off does",
        "wcapsnet explain runs/demo digit.png --class 8 --nearest 5",
        "wcapsnet explain runs/demo                        how far its capsules specialise, on its test set",
        "wcapsnet explain runs/demo --capsule 2.1          capsule 1 of level 2: its images, its classes",
        "wcapsnet explain runs/demo --faithfulness 32      does the routing point at what matters?",
        "wcapsnet explain runs/demo --reroute              does it matter that every image has its own routing?",
        "wcapsnet explain runs/demo --critics              how steep and how saturated its critics are",
    )
)
def explain(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|NAME", help="A run folder or a shipped network; for one image also a .safetensors file."
        ),
    ],
    picture: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="IMAGE", help="A file, or - for standard input. Default: the data set.", show_default=False
        ),
    ] = None,
    about: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--class", help="One image: the class to explain, if not the one predicted.", show_default=False),
    ] = None,
    near: Annotated[
        int, typer.Option("--nearest", min=0, help="One image: show so many of the nearest in training.")
    ] = 0,
    capsule: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="LEVEL.CAPSULE", help="Data set: one capsule, such as 2.1.", show_default=False),
    ] = None,
    measured: Annotated[
        int, typer.Option("--faithfulness", min=0, help="Data set: delete and insert regions of so many images.")
    ] = 0,
    rerouted: Annotated[
        bool,
        typer.Option(
            "--reroute",
            help=f"Data set: answer again by the mean weights of {MEAN_IMAGES:,} validation images (for --split "
            "validation: training images), by another image's, by equal ones and by critics that drop as in training; "
            "random weights by equal ones and by other draws.",
        ),
    ] = False,
    steep: Annotated[
        bool, typer.Option("--critics", help="Data set: measure how steep and how saturated the critics are.")
    ] = False,
    split: Annotated[
        Optional[SplitName],  # noqa: UP045
        typer.Option(help="Data set: which part.", show_default="test"),
    ] = None,
    images: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Data set: only so many of its images, evenly spread.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Look inside: the routing of one image, or of a run's data set."""
    chosen = choose_device(device)
    if picture is None:
        for name, value in {"--class": about, "--nearest": near}.items():
            if value:
                raise InputError(f"{name} is for one image: name it after the run.")
        if capsule and images:
            raise InputError("--capsule names images by their place in the data set, so it takes no --images.")
        asked = {"--capsule": capsule, "--faithfulness": measured, "--reroute": rerouted, "--critics": steep}
        if len(several := [name for name, value in asked.items() if value]) > 1:
            raise InputError(f"Choose one of {' and '.join(several)}.")
        part = split or SplitName.test
        if rerouted:
            _reroute(run, part, images, data_dir, download, chosen, as_json)
        elif steep:
            _critics(run, part, images, data_dir, download, chosen, as_json)
        else:
            _explain_dataset(run, part, images, capsule, measured, data_dir, download, chosen, as_json)
        return
    for_data = {"--capsule": capsule, "--faithfulness": measured, "--reroute": rerouted, "--critics": steep}
    for_data |= {"--split": split, "--images": images}
    for name, value in for_data.items():
        if value:
            raise InputError(f"{name} is for a data set, so no image can be given with it.")
    _explain_image(run, picture, about, near, data_dir, download, chosen, as_json)


@app.command(
    epilog=examples(
        "wcapsnet report runs/demo                         writes runs/demo/report.html",
        "wcapsnet report runs/demo --open --figures figures/",
        "wcapsnet report runs/a runs/b runs/c              curves overlaid, differences with their noise",
        "wcapsnet report wcapsnet-cifar10 --data-dir ~/data    a shipped network",
    )
)
def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN|NAME", help="A run folder or a shipped network; several are compared.")
    ],
    out_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out",
            help="The file; default RUN/report.html, NAME-report.html, or comparison.html beside the first run.",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Write the figures there too, as PDF, PNG and SVG.", show_default=False),
    ] = None,
    opened: Open = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """A run, or several beside each other, as one HTML file that opens anywhere: curves, mistakes, routing."""
    chosen = choose_device(device)
    if figures:
        report_figures.check()
        if figures.exists() and not figures.is_dir():
            raise InputError(f"--figures names a folder, and {figures} is a file.")
    if out_file and out_file.is_dir():
        raise InputError(f"--out names a file, and {out_file} is a folder.")
    subjects = [_subject(run) for run in dict.fromkeys(runs)]
    first = subjects[0]
    if len(subjects) == 1:
        facts = _facts(first, chosen, data_dir, download, quiet)
        place = first.folder / "report.html" if first.folder else Path(f"{first.name}-report.html")
        if "pictures" in facts.missing and first.weights and place.exists() and not out_file:
            raise InputError(f"{place} is kept: a page without pictures would replace it; write that with --out.")
        page, drawn = report_page.run_page(facts), report_figures.run_figures(facts)
    else:
        gathered = [report_page.gather(one, None, "", torch.device("cpu")) for one in subjects]
        compared = report_page.named(gathered)
        place = (first.folder.parent if first.folder else Path()) / "comparison.html"
        page, drawn = report_page.comparison_page(compared), report_figures.comparison_figures(compared)
    place = out_file or place
    write_text(place, page)
    if figures:
        written = report_figures.write_figures(drawn, figures)
        out.print(f"{len(written)} figures are in [bold]{escape(str(figures))}[/].", soft_wrap=True)
    show.report_written(place)
    if opened and not _open(place):
        err.print("There is no display here to open it on.", style="yellow")


@app.command(
    epilog=examples(
        "wcapsnet explore runs/demo                        draw a digit and see which blocks decide",
        "wcapsnet explore wcapsnet-mnist --port 0          a shipped network, on any free port",
        "wcapsnet explore runs/photos --host 0.0.0.0       for everybody in the room",
    )
)
def explore(
    run: Annotated[
        str, typer.Argument(metavar="RUN|NAME", help="A run folder, a shipped network or a .safetensors file.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's own see the page.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
) -> None:
    """A live page: draw or drop an image, see the routing, switch blocks off, move the decoded vector."""
    chosen = choose_device(device)
    classifier, test, source = _to_explore(run, chosen, data_dir, download)
    name = run if run in shipped.names() else Path(run).resolve().name
    seen = None if test is None else _seen_in_training(run)
    explorer = Explorer(classifier, name, test, source=source, cache=cache.directory(), seen=seen)
    server = Server(explorer, host, port)
    try:
        explorer.warm_up()
        if not server.loopback:
            err.print(
                f"Everybody who can reach this machine on port {server.server_port} can use the page.",
                style="yellow",
                soft_wrap=True,
            )
        out.print(f"{escape(name)} is at [bold]{server.url}[/] (Ctrl-C ends it)", soft_wrap=True)
        if not no_browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()
    except KeyboardInterrupt:
        out.print("Closed.")
    finally:
        server.close()


app.command(epilog=examples(*EXAMPLES))(bench)


class Kind(str, Enum):
    recipes = "recipes"
    models = "models"
    weights = "weights"
    datasets = "datasets"
    runs = "runs"


@app.command("list", epilog=examples("wcapsnet list", "wcapsnet list runs"))
def list_command(
    kind: Annotated[Optional[Kind], typer.Argument(help="Only these.", show_default=False)] = None,  # noqa: UP045
    runs: Annotated[Path, typer.Option(help="Where run folders lie.")] = Path("runs"),
) -> None:
    """What there is: recipes, models, shipped networks, data sets, runs."""
    if kind in (None, Kind.recipes):
        show.recipes()
    if kind in (None, Kind.models):
        show.models()
    if kind in (None, Kind.weights):
        show.weights()
    if kind in (None, Kind.datasets):
        show.datasets()
    if kind in (None, Kind.runs):
        show.runs(runs)


def main() -> NoReturn:
    with in_a_sentence(_short_of_memory(*sys.argv[1:])):
        app()
    sys.exit(0)


def _short_of_memory(command: str = "", *words: str) -> str:
    """What to do then, by options that the command has and takes"""
    resumed = any(word.partition("=")[0] == "--resume" for word in words)  # as it was begun
    if command in ("train", "sweep", "ablate") and not resumed:
        return "choose a smaller --batch-size or, for a folder of pictures, a smaller --size"
    if command == "bench":
        return "choose a smaller --batch"
    other = "" if command in ("tables", "list") else ", or choose another --device"
    return f"end other programs that use it{other}"


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _experiment(target: str, size: str | None, model: str, device: torch.device) -> tuple[Experiment, Path | None]:
    """A recipe's name, a run folder or its experiment.json (then with the folder), or a folder of pictures."""
    path = Path(target).expanduser()
    record = path if Run.is_run(path) else path.parent if path.suffix == ".json" else None
    if (target in RECIPES or record) and (size is not None or model != "auto"):
        raise InputError(
            "--size and --model are for folders of pictures; the data sets of recipes have their own size."
        )
    if target in RECIPES:
        return recipe(target), None
    if record:
        return read_experiment(path if path.suffix == ".json" else path / "experiment.json"), record
    if not path.exists() and not {"/", "\\"} & set(target):
        raise InputError(f"{target!r} is neither a recipe nor a folder{suggest(target)}")
    summary = scan_folder(path)
    if model == "auto":
        model = "wcapsnet" if device.type == "cuda" else "wcapsnet-quick"
    return quick.folder(path, summary, _parse_size(size) if size else None, model), None


def _asked(
    target: str,
    size: str | None,
    model: str,
    device: torch.device,
    data_dir: Path | None,
    changes: dict[str, Any],
    epochs: int | None,
    precision: str,
    kernels: str,
    settings: list[str] | None,
) -> tuple[Experiment, Path | None]:
    """The experiment that the options of a command describe, and where its data lie."""
    experiment, record = _experiment(target, size, model, device)
    if record:
        experiment, data_dir = _moved(experiment, data_dir), data_dir or _remembered(record)
    training = replace(experiment.training, **{k: v for k, v in changes.items() if v is not None})
    if epochs:
        training = training.with_epochs(epochs)
    if precision != "auto":
        training = replace(training, precision=precision)
    elif record is None:
        training = replace(training, precision="bf16" if device.type == "cuda" else "fp32")
    if kernels != "auto":
        training = replace(training, kernels=kernels)
    experiment = replace(experiment, training=training)
    for assignment in settings or []:
        experiment = with_setting(experiment, assignment)
    return experiment, data_dir


def _parse_size(text: str) -> tuple[int, int]:
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise InputError(f"--size is a side such as 48, or HEIGHTxWIDTH such as 32x64, not {text!r}.")
    height, width = int(sides[0]), int(sides[-1])
    if not MIN_SIDE <= min(height, width) <= max(height, width) <= MAX_SIDE:
        raise InputError(f"--size is {text}; a side is to be between {MIN_SIDE} and {MAX_SIDE} pixels.")
    return height, width


def _remembered(folder: Path) -> Path | None:
    """Where the data lay when the run was begun."""
    path = folder / "environment.json"
    place = read_json(path).get("data_dir") if path.exists() else None
    return Path(place) if place else None


def _data_of(run: Run, data_dir: Path | None, download: bool, quiet: bool) -> Dataset:
    """A run's own data; for a folder of pictures that was moved, --data-dir is its new place."""
    return dataset_of(_moved(run.experiment, data_dir), data_dir or _remembered(run.path), download, quiet)


def _moved(experiment: Experiment, data_dir: Path | None) -> Experiment:
    if data_dir is None or experiment.data.source in DATASETS:
        return experiment
    place = data_dir.expanduser().resolve()  # a folder, even if it is called as a data set is
    if not place.exists():
        raise InputError(f"There is no folder {data_dir}: --data-dir is to be where the pictures of the run lie now.")
    return replace(experiment, data=replace(experiment.data, source=str(place)))


def _start(
    experiment: Experiment,
    out_dir: Path | None,
    device: torch.device,
    data_dir: Path | None,
    download: bool,
    quiet: bool,
) -> Trainer:
    named = experiment.data.source in DATASETS
    run = Run.at(out_dir, experiment) if out_dir else Run.next_free(Path("runs") / experiment.name, experiment)
    trainer = _trainer(run, dataset_of(experiment, data_dir, download, quiet), device, quiet)
    place = (data_dir or default_data_dir()) if named else None
    run.start(describe_environment(device, place, 1, trainer.computed_by), 0)  # last: bad input leaves nothing behind
    return trainer


def _resume(path: Path, device: torch.device, data_dir: Path | None, download: bool, quiet: bool) -> Trainer | None:
    run = Run.open(path)
    run.hold()  # before its state is read
    trainer: Trainer | None = None
    try:
        if run.finished:
            show.command("The run is finished; look at it with: wcapsnet evaluate", str(path))
        else:
            trainer = _trainer(run, _data_of(run, data_dir, download, quiet), device, quiet)
            run.start(describe_environment(device, None, 1, trainer.computed_by), trainer.state.epoch)
            run.file("failed.json").unlink(missing_ok=True)
    finally:
        if trainer is None:
            run.release()
    return trainer


def _trainer(run: Run, dataset: Dataset, device: torch.device, quiet: bool) -> Trainer:
    trainer = Trainer(run, dataset, device, make_progress(out, quiet))
    compile_kernels.tell = None if quiet else out.print
    if not quiet:
        experiment, (_, channels, height, width) = run.experiment, dataset.train.images.shape
        parameters = sum(trainer.network.parameter_counts().values())
        levels = "-".join(str(level.capsules) for level in experiment.model.levels)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        out.print(
            f"[bold]{escape(experiment.name)}[/]: {len(dataset.classes)} classes, "
            f"{len(dataset.train.labels):,} training, {len(dataset.validation.labels):,} validation, "
            f"{len(dataset.test.labels):,} test images "
            f"({channels}×{height}×{width})",
            soft_wrap=True,
        )
        out.print(
            f"WCapsNet {levels} capsules, {parameters:,} parameters; {experiment.training.precision} on {name} "
            f"by {trainer.computed_by}, "
            f"batch {experiment.training.batch_size}, {plural(experiment.training.epochs, 'epoch')}"
            + (f", going on after epoch {trainer.state.epoch}" if trainer.state.epoch or trainer.state.step else ""),
            soft_wrap=True,
        )
    return trainer


def _run(trainer: Trainer) -> Evaluation:
    try:
        return _trained_and_tested(trainer)
    finally:
        trainer.run.release()


def _trained_and_tested(trainer: Trainer) -> Evaluation:
    try:
        trainer.fit()
    except Interrupted:
        _report_of(trainer, GLANCE)
        raise Interrupted("train", "--resume", str(trainer.run.path)) from None
    except Diverged as error:
        _report_of(trainer, GLANCE)
        kept = " The last good checkpoint is kept." if trainer.run.file("last.safetensors").exists() else ""
        raise Diverged(f"{error}{kept}") from None
    state = trainer.state
    if trainer.stopped_early and (patience := trainer.settings.patience):
        out.print(f"Stopped early: validation has not improved for {plural(patience, 'epoch')}.")
    surveyor = report_page.Surveyor()
    test = trainer.finish(surveyor)
    surveyor.keep(trainer.run)
    out.print(
        f"Test accuracy [bold]{percent(test.accuracy)}%[/] ({len(test.labels):,} images) with the weights of epoch "
        f"{state.best_epoch} (best of {state.epoch} on validation: {percent(state.best_accuracy)}%), "
        f"after {clock(state.seconds)}",
        soft_wrap=True,
    )
    return test


# ── evaluation, prediction, lists ───────────────────────────────────────────────────────────────────────────────────


def _with_its_data(
    source: str, device: torch.device, data_dir: Path | None, download: bool, quiet: bool, *parts: str
) -> tuple[Classifier, Dataset]:
    """A trained network and its data set, of which these parts are to be those it was made with."""
    path = Path(source)
    if source not in shipped.names() and not path.is_file():
        if not path.exists():
            raise InputError(f"There is no run folder {source}, {shipped.unknown(source)}")
        run = Run.open(path)
        classifier = load(path, device=str(device))
        dataset = _data_of(run, data_dir, download, quiet)
        run.check_data(dataset, *parts)
        return classifier, dataset
    classifier = load(source, device=str(device))
    experiment = _moved(shipped.experiment_of(classifier, source), data_dir)
    dataset = dataset_of(experiment, data_dir, download, quiet)
    shipped.check_data(classifier, dataset, source, *parts)
    return classifier, dataset


def _sources(pictures: list[str]) -> tuple[list[str], list[str]]:
    """The files that were named, or lie in folders that were; and the folders that have none."""
    sources: list[str] = []
    empty: list[str] = []
    for picture in dict.fromkeys(pictures):  # standard input can be read once
        found = list(map(str, image_files(Path(picture)))) if Path(picture).is_dir() else [picture]
        sources += found
        if not found:
            empty.append(f"There are no pictures in {picture}.")
    return sources, empty


def _predict_all(classifier: Classifier, sources: list[str], top: int) -> tuple[list[Prediction], list[str]]:
    """What can be read is answered; what cannot is listed."""
    answers: list[Prediction] = []
    failures: list[str] = []
    for start in range(0, len(sources), 64):
        images, names = [], []
        for source in sources[start : start + 64]:
            try:
                images.append(classifier.preprocess([sys.stdin.buffer.read() if source == "-" else source]))
                names.append(source)
            except InputError as error:
                failures.append(str(error))
        if images:
            answers += classifier.answer(torch.cat(images), top, names)
    return answers, failures


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────

GLANCE = 500  # as many validation images are looked at for the report of a run that was stopped


def _subject(source: str) -> report_page.Subject:
    if source in shipped.names():
        return report_page.subject_of_shipped(source)
    path = Path(source)
    if not path.exists():
        raise InputError(f"There is no run folder {source}, {shipped.unknown(source)}")
    return report_page.subject_of_run(path)


def _facts(
    subject: report_page.Subject, device: torch.device, data_dir: Path | None, download: bool, quiet: bool
) -> report_page.Facts:
    """A report without the data set is better than none: it says what is missing."""
    dataset, why = None, ""
    parts = (subject.part, aside(subject.part))
    try:
        if subject.folder:
            run = Run.open(subject.folder)
            dataset = _data_of(run, data_dir, download, True)
            run.check_data(dataset, *parts)
        else:
            _, dataset = _with_its_data(subject.source, device, data_dir, download, True, *parts)
    except (InputError, OSError) as error:
        dataset, why = None, str(error)
    with Bar(console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task("images", total=None)
        facts = report_page.gather(
            subject, dataset, why, device, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if "pictures" in facts.missing and not quiet:
        err.print(f"Without pictures: {facts.missing['pictures']}", style="yellow", markup=False, soft_wrap=True)
    return facts


def _report_of(trainer: Trainer, sample: int | None = None, quiet: bool = False) -> Path | None:
    """At the end of training, or from what there is where it was stopped; None if it could not be made."""
    place = trainer.run.file("report.html")
    try:
        subject = report_page.subject_of_run(trainer.run.path)
        facts = report_page.gather(subject, trainer.dataset, "", trainer.device, sample)
        write_text(place, report_page.run_page(facts))
    except KeyboardInterrupt:  # in a hurry: the run is saved, and the report can be made later
        return None
    except (InputError, OSError) as error:
        err.print(f"The report could not be written: {error}", style="yellow", markup=False, soft_wrap=True)
        return None
    if not quiet:
        show.report_written(place)
    return place


def _open(page: Path) -> bool:
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    return webbrowser.open(page.resolve().as_uri())


# ── explanation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _to_explore(
    source: str, device: torch.device, data_dir: Path | None, download: bool
) -> tuple[Classifier, Split | None, str]:
    """A trained network, its test images if they are at hand, and what they are called. It can be explored without."""
    try:
        classifier, dataset = _with_its_data(source, device, data_dir, download, False, "test")
    except InputError as error:
        if data_dir is not None or download:
            raise
        classifier = load(source, device=str(device))
        err.print(f"Without test images: {error}", style="yellow", markup=False, soft_wrap=True)
        return classifier, None, ""
    return classifier, dataset.test, dataset.name


def _seen_in_training(source: str) -> Survey | None:
    """Of the test images, by the weights that the run has now."""
    if source in shipped.names() or not Path(source).is_dir():
        return None
    seen = report_page.saved_survey(report_page.subject_of_run(Path(source)))
    return seen.survey if seen and seen.part == "test" else None


PROBE_IMAGES = 2000  # as many other images teach the probes


def _explain_image(
    run: str,
    picture: str,
    about: str | None,
    near: int,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    classifier, dataset = (
        _with_its_data(run, device, data_dir, download, as_json, "train")
        if near
        else (load(run, device=str(device)), None)
    )
    if about is not None and about not in classifier.classes:
        raise InputError(f"There is no class {about!r}{suggestion(about, classifier.classes)}")
    image = classifier.preprocess([sys.stdin.buffer.read() if picture == "-" else picture])[0]
    one = explain_image(classifier.network, image)
    target = one.predicted if about is None else classifier.classes.index(about)
    facts = {"source": picture, **one.summary(classifier.classes, target)}
    if not as_json:
        show_explained.image(one, classifier.classes, target, picture)
    if dataset:
        seen = _survey(classifier, dataset.train, device, as_json)
        found = nearest(seen, one.vector, near)
        facts["nearest"] = found.summary(seen, classifier.classes, dataset.train_files)
        if not as_json:
            show_explained.neighbours(found, seen, classifier.classes, dataset.train_files)
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))


def _explain_dataset(
    run: str,
    split: SplitName,
    images: int | None,
    capsule: str | None,
    measured: int,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    other = SplitName(aside(split.value))  # which teaches the probes
    parts = (split,) if measured or capsule else (split, other)
    classifier, dataset = _with_its_data(run, device, data_dir, download, as_json, *(one.value for one in parts))
    part, files = _some_of(dataset, split, measured or images)
    place = _parse_capsule(capsule, classifier) if capsule else None
    names = classifier.classes
    facts: dict[str, Any] = {"run": run, "split": split.value, "images": len(part.labels)}
    if measured:
        taken, _ = DeviceSplit(part, *classifier.normalization, device).take(slice(None))
        curves = faithfulness(classifier.network, taken)
        facts["baseline"], facts["methods"] = "blur", {name: curve.summary() for name, curve in curves.items()}
        if not as_json:
            show_explained.faithfulness(curves, "the image blurred")
    else:
        seen = _survey(classifier, part, device, as_json, routed=place is None)
        found = specialization(seen)
        if place is not None:
            one = explain_capsule(seen, found, *place)
            facts |= one.summary(seen, names, files)
            if not as_json:
                show_explained.capsule(one, seen, names, files)
            if one.decoded:  # a block of the last level
                walk = traverse_capsule(classifier.network, seen, place[1])
                facts["traversal"] = {"low": walk.values[:, 0].tolist(), "high": walk.values[:, -1].tolist()}
                facts["traversal"]["change"] = walk.change.tolist()
                if not as_json:
                    show_explained.traversal(walk, one.decoded)
        else:
            taught, _ = _some_of(dataset, other, PROBE_IMAGES)
            probes = probe_levels(_survey(classifier, taught, device, as_json, routed=True), seen)
            facts |= {"classes": names, "accuracy": seen.accuracy, **found.summary()}
            facts["probes"] = [asdict(probe) for probe in probes]
            facts |= {"probes_taught_by": other.value, "probe_images": len(taught.labels)}
            if not as_json:
                show_explained.dataset(found, probes, seen, names, images_of(split.value, len(seen)))
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))


def _reroute(
    run: str,
    split: SplitName,
    images: int | None,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    of = SplitName(aside(split.value))  # of which the mean is taken
    classifier, dataset = _with_its_data(run, device, data_dir, download, as_json, split.value, of.value)
    part, mean_of = (
        DeviceSplit(_some_of(dataset, one, count)[0], *classifier.normalization, device)
        for one, count in ((split, images), (of, MEAN_IMAGES))
    )
    with Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        task = bar.add_task("images", total=len(part))
        found = reroute(classifier.network, part, mean_of, progress=lambda done: bar.update(task, completed=done))
    if as_json:
        facts: dict[str, Any] = {"run": run, "split": split.value, "images": len(part)}
        if "mean" in found.by:
            facts |= {"mean_of": of.value, "mean_images": len(mean_of)}
        typer.echo(json.dumps(facts | found.summary(), ensure_ascii=False))
    else:
        mean = f"{len(mean_of):,} {images_of(of.value, len(mean_of))}"
        show_explained.rerouted(found, images_of(split.value, len(part)), mean)


def _critics(
    run: str,
    split: SplitName,
    images: int | None,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    classifier, dataset = _with_its_data(run, device, data_dir, download, as_json, split.value)
    part = DeviceSplit(_some_of(dataset, split, images)[0], *classifier.normalization, device)
    with Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        task = bar.add_task("images", total=len(part))
        found = critics(classifier.network, part, progress=lambda done: bar.update(task, completed=done))
    if as_json:
        facts = {"run": run, "split": split.value, "images": len(part), **found.summary()}
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        show_explained.critics(found, images_of(split.value, len(part)))


def _some_of(dataset: Dataset, part: SplitName, images: int | None) -> tuple[Split, tuple[str, ...]]:
    """A part, or so many images of it; and for a folder which picture each of them is"""
    split: Split = getattr(dataset, part.value)
    files: tuple[str, ...] = getattr(dataset, f"{part.value}_files")
    if images is None or images >= len(split.labels):
        return split, files
    places = evenly(len(split.labels), images)
    some = tuple(files[place] for place in places) if files else ()
    return Split(split.images[places], split.labels[places]), some


def _survey(classifier: Classifier, part: Split, device: torch.device, quiet: bool, routed: bool = False) -> Survey:
    split = DeviceSplit(part, *classifier.normalization, device)
    with Bar(console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task("images", total=len(split))
        return survey(classifier.network, split, routed=routed, progress=lambda done: bar.update(task, completed=done))


def _parse_capsule(text: str, classifier: Classifier) -> tuple[int, int]:
    """ "2.1" → level 2, which is 1 counted from 0, and capsule 1, which is counted from 0 everywhere"""
    level, dot, number = text.partition(".")
    if not dot or not level.isdecimal() or not number.isdecimal():
        raise InputError(f"--capsule reads LEVEL.CAPSULE, for example 2.1, not {text!r}.")
    levels = classifier.config.levels
    if not 1 <= int(level) <= len(levels):
        raise InputError(f"The network has levels 1 to {len(levels)}, so {level} is not one.")
    if int(number) >= levels[int(level) - 1].capsules:
        raise InputError(
            f"Level {level} has capsules 0 to {levels[int(level) - 1].capsules - 1}, so {number} is not one."
        )
    return int(level) - 1, int(number)
