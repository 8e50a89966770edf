"""The training loop. It is independent of the architecture: steps, validation, run folder."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..classifier import Classifier, load_tensors, not_finite, save_tensors, weights_checksum
from ..data import Dataset
from ..data.device_data import DeviceData, DeviceSplit, epoch_order
from ..device import random_state, set_random_state
from ..errors import Diverged, InputError, Interrupted, Lost
from ..experiment import Experiment, TrainingConfig
from ..memory import built, check_training
from ..network import WCapsNet
from ..objective import l2
from ..scores import imbalanced
from ..settings import from_dict
from .check_parts import check_parts
from .console import Progress
from .data_parallel import ParallelStep, choose
from .distributed import Ranks, check_batch
from .environment import describe_environment
from .evaluate import Evaluation, confusion_rows, evaluate, good_batch_for, prediction_rows
from .pace import Pace
from .run_folder import Run, write_csv
from .step import Average, GraphedStep, Step, decayed_parameters, make_optimizer
from .take_over import TakenOver, take_over
from .tensorboard import event_writer

# Saving may take this share of the time, so large networks with short epochs are only saved after some of them, and
# after every best one. Saves that take fewer seconds than QUICK do not count.
SAVING, QUICK = 0.05, 0.05


@dataclass
class State:
    """The progress of a run, apart from its tensors."""

    epoch: int = 0  # epochs finished
    step: int = 0  # finished steps of the current epoch
    best_epoch: int = 0
    best_accuracy: float = -1.0  # on validation
    best_loss: float = math.inf
    highest: float = -1.0  # validation accuracy of any epoch
    seconds: float = 0.0

    def better(self, accuracy: float, loss: float) -> bool:
        return (accuracy, -loss) > (self.best_accuracy, -self.best_loss)

    def as_good(self, accuracy: float, images: int) -> bool:
        """Whether an accuracy on this many images is within a standard error of the highest one"""
        highest = max(accuracy, self.highest)
        return accuracy >= highest - math.sqrt(highest * (1 - highest) / images)


class Trainer:
    def __init__(
        self,
        run: Run,
        data: Dataset | DeviceData,
        device: torch.device,
        progress: Progress,
        ranks: Ranks | None = None,
    ):
        """`data` is moved to the device, unless it is already there, shared by several runs. Of several `ranks`, only
        the first uses the run folder."""
        self.run, self.device, self.progress = run, device, progress
        self.ranks = ranks = ranks or Ranks(device)
        self.experiment = experiment = run.experiment
        self.settings = experiment.training
        if not isinstance(data, DeviceData):
            data = DeviceData(data, experiment.data.normalization, device, experiment.data.stream)
        self.data = data
        self.dataset, self.normalization = self.data.dataset, self.data.normalization
        self.train_data, self.validation_data = self.data.train.own(), self.data.validation
        labels = self.dataset.train.labels
        self._balanced_labels = labels if experiment.data.balance and imbalanced(labels.bincount().tolist()) else None

        check_batch(min(self.settings.batch_size, len(self.train_data)), ranks.world)
        check_memory(experiment, device, len(self.train_data), len(self.validation_data), ranks.world)
        torch.manual_seed(self.settings.seed)
        self.network = built(experiment.model, parameter_copies(self.settings)).to(device)
        check_parts(experiment, self.network, device)
        self.state = State()
        self._saved, self._save_took = 0.0, 0.0  # when the last save ended, and its seconds
        new = ranks.first and not run.file("state.safetensors").exists()  # a worker gets everything from rank 0
        self.taken_over = self._taken_over() if new and experiment.start else None
        self._sharpen()  # before a step is recorded
        self.engine = choose(self.network, experiment, device, ranks)
        self.computed_by = self.engine.description
        self.optimizer = make_optimizer(self.engine, experiment, device)
        self.average = Average(self.network, self.settings.averaging) if self.settings.averaging else None
        # what is evaluated and saved: the weights, or their average
        self.evaluated = kernels.choose(self.average.network, experiment, device) if self.average else self.engine
        self.classifier = Classifier(self.evaluated.network, self.dataset.classes, *self.normalization)
        make_step = Step if ranks.world == 1 else ParallelStep
        self.step: Step = make_step(experiment, self.engine, self.optimizer, self.train_data, self.average)
        if ranks.first and not new:
            self._restore()
        elif new and run.metrics() and run.file("last.safetensors").exists():  # else killed in its first save
            raise InputError(
                f"{run.path} cannot be resumed: state.safetensors is missing; restore it, or delete {run.path} and "
                "train again."
            )
        self.state = ranks.same(self.state)
        self._saved_epoch = self.state.epoch
        if device.type == "cuda" and self.settings.cuda_graph and ranks.world == 1:
            self.step = GraphedStep(self.step, min(self.settings.batch_size, len(self.train_data)))
        self.pace = Pace(self, self.settings.minutes) if self.settings.minutes else None

    def start(self, data_dir: Path | None, at_a_time: int = 1, **facts: Any) -> None:
        """Write the run folder, or that the run resumes; `at_a_time` runs share the device."""
        environment = describe_environment(self.device, data_dir, at_a_time, self.computed_by)
        self.run.start(environment | facts, self.state.epoch)

    def fit(self) -> None:
        """Train to the end of the schedule, or until validation has not improved for `patience` epochs."""
        with signals(insist=self.ranks.world == 1) as stop, closing(self.steps()) as steps:
            try:
                for _ in steps:
                    if self.ranks.stopping(stop):
                        self.pause()
                        raise Interrupted
            except Lost:
                if self.ranks.first:
                    self.pause()
                raise

    def steps(self) -> Generator[None, None, None]:
        """The loop of `fit` as a generator that pauses after every step: another run can then take a step."""
        writes = self.ranks.first
        if writes:
            self.run.record_data(self.dataset)
            self._save_last()
        if self.pace and not (self.state.epoch or self.state.step):
            self.pace.plan()
        records = self.run.metrics()[: self.state.epoch] if writes else []
        folder = self.run.file("tensorboard") if writes else None
        with self.progress.bar, event_writer(folder, self.state.epoch) as events:
            while not self.over:
                yield from self._train_epoch()
                record = self._finish_epoch()
                if writes:
                    records.append(record)
                    self.run.write_metrics(records)
                    events(record)
                    if self.over or record["best"] or self._save_is_due():  # `state` is never older than `best`
                        self.save()
                if self.pace:
                    self.pace.replan()
                self.progress.epoch(record, self.settings.epochs)
                yield

    @property
    def over(self) -> bool:
        """Whether the schedule has ended, or validation has not improved for `patience` epochs"""
        state, settings = self.state, self.settings
        return state.epoch >= settings.epochs or settings.out_of_patience(state.epoch, state.best_epoch)

    def _train_epoch(self) -> Iterator[None]:
        state, first = self.state, self.state.step
        started = self._since = time.perf_counter()
        self.ranks.spread(self._tensors().values())  # also because unlike processors round differently
        self.ranks.reseed(self.settings.seed, state.epoch, state.step)
        order = self.epoch_order()
        own = self.train_data.expect(self.ranks.mine(order), first)
        order = order.to(own.device)
        rate = None
        self._sharpen()
        self.network.train()
        while state.step < len(order):
            if (now := self.settings.learning_rate(state.epoch + state.step / len(order))) != rate:
                rate = now
                for group in self.optimizer.param_groups:
                    group["lr"].fill_(rate)
            self.step(order[state.step])
            state.step += 1
            if self.progress.due():
                means = self.step.means()
                self._check(means)
                self.progress.batch(state.epoch, self.settings.epochs, state.step, len(order), order.shape[1], means)
            if state.step < len(order):  # after the last step, validation comes before the pause
                yield
        self._check(self.step.means())
        self.images_per_s = (len(order) - first) * order.shape[1] / max(time.perf_counter() - started, 1e-9)

    def _finish_epoch(self) -> dict[str, Any]:
        state, means = self.state, self.step.means()
        validation = self.evaluate(self.validation_data)
        # The last step broke the weights: do not overwrite good ones.
        if self.ranks.first and (not math.isfinite(validation.loss) or not_finite(self.network)):
            raise self._diverged(validation.loss, only_evaluated=not not_finite(self.network))
        state.epoch, state.step = state.epoch + 1, 0
        # Averages improve as the learning rate falls: of equally good ones, the last is used (D13).
        as_good = self.average and state.as_good(validation.accuracy, len(validation.labels))
        state.highest = max(state.highest, validation.accuracy)
        if as_good or state.better(validation.accuracy, validation.loss):
            state.best_epoch = state.epoch
            state.best_accuracy, state.best_loss = validation.accuracy, validation.loss
            if self.ranks.first:
                self.classifier.save(self.run.file("best.safetensors"), epoch=state.epoch)
        self._count_seconds()
        self.step.sums.zero_()
        return {
            "epoch": state.epoch,
            "lr": float(f"{self.settings.learning_rate(state.epoch - 1):.6g}"),
            **{name: value for name, value in means.items() if name != "accuracy"},
            "l2": float(l2(decayed_parameters(self.network))),
            "train_accuracy": means["accuracy"],
            "validation_loss": validation.loss,
            "validation_accuracy": validation.accuracy,
            "best": state.best_epoch == state.epoch,
            "images_per_s": round(self.images_per_s, 1),
            "seconds": round(state.seconds, 3),
        }

    def epoch_order(self) -> Tensor:
        settings = self.settings
        balanced = self._balanced_labels
        order = epoch_order(len(self.train_data), settings.batch_size, settings.seed, self.state.epoch, balanced)
        return order[: settings.epoch_steps]

    def _sharpen(self) -> None:
        """Set the sharpness of this epoch if it grows (D42)."""
        if self.settings.sharpening:
            self.network.sharpen(min(1.0, self.state.epoch / self.settings.sharpening))

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.state.seconds += now - self._since
        self._since = now

    def evaluate(self, split: DeviceSplit) -> Evaluation:
        """With the current weights, or their average"""
        forward = self.evaluated.forward if isinstance(self.evaluated, kernels.FusedEngine) else None
        return self.ranks.evaluate(
            lambda part: evaluate(self.evaluated.network, part, self.settings.precision, forward=forward), split
        )

    def pause(self) -> None:
        """Save at a pause of `steps`, unless the last epoch has just been saved."""
        if self.state.step:
            self._check(self.step.means())
            self._count_seconds()
        if self.state.step or self.state.epoch > self._saved_epoch:
            self.save()

    def reschedule(self, **changes: Any) -> None:
        """Change the schedule, and the experiment recorded in the run folder with it."""
        self.settings = replace(self.settings, **changes)
        self.run.experiment = self.experiment = replace(self.experiment, training=self.settings)
        if self.ranks.first:
            self.run.write_experiment()

    # ── divergence ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check(self, means: dict[str, float]) -> None:
        if not self.ranks.first:
            return
        if not math.isfinite(means["total"]) or means.get("cross_entropy", 0.0) > 20 * self._chance():
            raise self._diverged(means["total"])

    def _diverged(self, loss: float, only_evaluated: bool = False) -> Diverged:
        """`only_evaluated`: the weights are finite, but the statistics of batch norm may lag behind them."""
        more_steps = ", or the batch size, so that batch norm has more steps to follow the weights"
        usual = 0.001 if self.settings.optimizer == "adamw" else TrainingConfig.lr
        return Diverged(
            f"Training diverged in epoch {self.state.epoch + 1} (loss {loss:.3g}, guessing gives "
            f"{self._chance():.2f}); lower the learning rate, for example "
            f"--lr {min(self.settings.lr / 10, usual):g}{more_steps if only_evaluated else ''}."
        )

    def _chance(self) -> float:
        """The cross entropy of guessing; the class "none of these" counts if the network has it"""
        model = self.experiment.model
        return math.log(getattr(model, "outputs", model.classes))

    # ── the test ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, measure: Callable[[WCapsNet, DeviceSplit], Evaluation] | None = None) -> Evaluation:
        """The only use of the test set: with the best validation weights, in fp32. `measure` replaces `evaluate`."""
        best = Classifier.load(self.run.weights(), self.device)
        self.run.check_weights(best.config, best.classes)
        validation = evaluate(best.network, self.validation_data)
        facts: dict[str, Any] = {
            "best_epoch": self.state.best_epoch,
            "epochs": self.state.epoch,
            "seconds": round(self.state.seconds, 1),
            "validation_accuracy": validation.accuracy,
        }
        test = (measure or evaluate)(best.network, self.data.test)
        write_csv(self.run.file("predictions.csv"), prediction_rows(test, self.dataset))
        write_csv(self.run.file("confusion.csv"), confusion_rows(test, self.dataset.classes))
        self.run.write_json("test.json", {**facts, **test.summary(self.dataset.classes)})
        return test

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _taken_over(self) -> TakenOver:
        path, start = self.run.starting_weights(), self.experiment.start
        if start and weights_checksum(path) != start.checksum:
            raise InputError(
                f"{path} is not the network that {self.experiment.name} starts from: its checksum differs; restore "
                "it, or name it again with --from."
            )
        return take_over(self.network, self.dataset.classes, Classifier.load(path, self.device))

    def save(self) -> None:
        """Resuming reads only `state`. A run killed before it is written repeats its last epoch; one killed after it
        writes `last` when it resumes."""
        started = time.perf_counter()
        tensors = self._tensors()
        tensors["random.cpu"] = torch.get_rng_state()
        if (random := random_state(self.device)) is not None:
            tensors[f"random.{self.device.type}"] = random
        save_tensors(self.run.file("state.safetensors"), tensors, {"state": asdict(self.state)})
        self._save_last()
        self._saved_epoch, self._saved = self.state.epoch, time.perf_counter()
        self._save_took = self._saved - started

    def _save_is_due(self) -> bool:
        return self._save_took < QUICK or time.perf_counter() - self._saved >= self._save_took / SAVING

    def _save_last(self) -> None:
        if self.state.epoch and self.state.step == 0:
            self.classifier.save(self.run.file("last.safetensors"), epoch=self.state.epoch)

    def _tensors(self) -> dict[str, Tensor]:
        """What a step changes, by the names in `state`"""
        tensors = {f"model.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            for kind, tensor in self.optimizer.state[parameter].items():
                tensors[f"{'momentum' if kind == 'momentum_buffer' else kind}.{name}"] = tensor
        if self.average:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.network.state_dict().items()}
            tensors["average_steps"] = self.average.steps
        return {**tensors, "sums": self.step.sums}

    def _restore(self) -> None:
        tensors, facts = load_tensors(self.run.file("state.safetensors"))
        self.run.check_data(self.dataset)
        try:
            own = self._tensors()
            if different := own.keys() ^ {name for name in tensors if not name.startswith("random.")}:
                raise KeyError(*different)
            with torch.no_grad():
                for name, tensor in own.items():
                    if tensor.shape != tensors[name].shape:
                        raise RuntimeError(f"{name} has another shape")
                    tensor.copy_(tensors[name])
            torch.set_rng_state(tensors["random.cpu"])
            if (random := tensors.get(f"random.{self.device.type}")) is not None and self.device.type != "cpu":
                set_random_state(self.device, random)
            self.state = from_dict(State, facts["state"], "state")
        except (RuntimeError, KeyError, TypeError, InputError) as error:
            raise InputError(
                f"{self.run.path} cannot be resumed: its state does not fit its experiment.json; restore the "
                "original file, or train into another folder."
            ) from error
        if broken := not_finite(self.network):
            raise InputError(
                f"{self.run.file('state.safetensors')} holds a broken network: {broken} is not finite; delete "
                f"{self.run.path} and train again."
            )


def parameter_copies(settings: TrainingConfig) -> int:
    """Weights, gradients, the optimizer's momentum or two moments, and the average"""
    return 2 + (2 if settings.optimizer == "adamw" else 1) + bool(settings.averaging)


def check_memory(
    experiment: Experiment, device: torch.device, images: int, validation_images: int, ranks: int = 1
) -> None:
    """Refuse an experiment that needs more memory than there is, before anything is built. On CPUs, ranks share it."""
    model, settings, cuda = experiment.model, experiment.training, device.type == "cuda"
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    evaluated = min(good_batch_for(model.height * model.width, device) * threads, validation_images)
    # if the fused kernels support the network; they need a tenth of the memory
    fused = cuda and settings.kernels in ("auto", "fused") and ranks == 1
    scale = 0.05 if fused else 0.5 if settings.precision == "bf16" else 1.0
    share = min(settings.batch_size, images) // (ranks if cuda else 1)
    check_training(model, device, share, evaluated, scale)


@contextmanager
def signals(insist: bool = True) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM append to the list instead of interrupting a step; a second one interrupts it, if `insist`."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received and insist:
            raise KeyboardInterrupt
        received.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone handles signals
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
