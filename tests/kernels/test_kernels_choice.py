"""The Python side of the kernels, without a compiler: who computes, what is launched, what is kept on disk."""

import copy
import ctypes
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch
from kernel_helpers import bf16, error
from torch import nn

from wcapsnet import kernels
from wcapsnet.data.loader import DeviceSplit
from wcapsnet.data.types import Split
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.kernels import Engine, layout
from wcapsnet.kernels import compile as compiling
from wcapsnet.kernels.compile import Cuda, Unavailable, structures
from wcapsnet.kernels.layout import tiling
from wcapsnet.kernels.supports import NORMALIZED, SQUASHED, unsupported_routing
from wcapsnet.network import CIFAR100_LEVELS, Level, RoutingConfig, WCapsNet, WCapsNetConfig
from wcapsnet.network.critic import BlockCritic, VectorCritic
from wcapsnet.network.nonlinearity import NONLINEARITIES
from wcapsnet.network.routing import WEIGHTINGS, softmax_weights
from wcapsnet.network.wcapsnet import FITNESSES
from wcapsnet.objective import ObjectiveConfig
from wcapsnet.training.step import Step, wcapsnet_losses

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
SMALL = WCapsNetConfig(height=8, width=8, levels=(Level(2, 8, 8, 2), Level(2, 8, 8, 1)), dense_layers=2)
SOURCES = sorted(path.name for path in compiling.SOURCES.glob("*.cu"))

# ── who computes ──


@pytest.mark.parametrize("wanted", ["auto", "plain"])
def test_on_a_cpu_pytorch_computes(wanted):
    network = WCapsNet(SMALL)
    assert kernels.use(network, wanted, "bf16", CPU) == "plain PyTorch"
    assert network.engine is None


def one_sentence(message):
    return message[0].isupper() and message.endswith(".") and ". " not in message and "\n" not in message


def test_fused_on_a_cpu_is_the_users_mistake():
    with pytest.raises(InputError) as caught:
        kernels.use(WCapsNet(SMALL), "fused", "bf16", CPU)
    assert one_sentence(str(caught.value))
    assert "CUDA device" in str(caught.value)
    assert "--kernels" in str(caught.value)


@pytest.fixture
def a_card(monkeypatch):
    """A machine whose card is new enough; nothing is launched."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(kernels, "start", lambda: None)


@pytest.mark.usefixtures("a_card")
def test_what_is_chosen_is_said():
    network = WCapsNet(SMALL)
    assert kernels.use(network, "auto", "bf16", CUDA) == "fused kernels"
    assert isinstance(network.engine, Engine)
    assert kernels.use(network, "plain", "bf16", CUDA) == "plain PyTorch"
    assert network.engine is None
    assert kernels.use(network, "auto", "fp32", CUDA) == "plain PyTorch (they compute in bf16, not in fp32)"


def test_an_old_card_is_not_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    network = WCapsNet(SMALL)
    assert kernels.use(network, "auto", "bf16", CUDA).startswith("plain PyTorch (they need a GPU of compute capability")
    with pytest.raises(InputError):
        kernels.use(network, "fused", "bf16", CUDA)


def test_without_nvrtc_or_driver_pytorch_computes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))

    def missing(name, *more, **named):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    answer = kernels.use(WCapsNet(SMALL), "auto", "bf16", CUDA)
    assert answer.startswith("plain PyTorch (NVRTC")


UNSUPPORTED = {
    "model.init_channels is 20": replace(SMALL, init_channels=20),
    "model.levels.1.dimension is 12": replace(SMALL, levels=(Level(2, 8, 8, 2), Level(2, 8, 12, 1))),
    "a critic has 12 channels": replace(SMALL, critic_channels=12),
    "deeper": replace(SMALL, dense_layers=15),
    "a map 136 wide": replace(SMALL, width=136),
    "levels.0.dimension is 264": replace(SMALL, levels=(Level(2, 8, 264, 2), Level(2, 8, 8, 1))),
    "the critics have": replace(SMALL, height=64, width=64, levels=(Level(1, 8, 8, 1),) * 7),
    "200 capsules": replace(SMALL, levels=(Level(200, 8, 8, 2), Level(2, 8, 8, 1))),
    "the last level": replace(SMALL, height=64, width=64, levels=(Level(8, 8, 8, 1),)),
}


@pytest.mark.usefixtures("a_card")
@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_a_network_of_other_shapes_is_left_to_pytorch_with_a_reason(reason):
    network = WCapsNet(UNSUPPORTED[reason])
    answer = kernels.use(network, "auto", "bf16", CUDA)
    assert answer.startswith("plain PyTorch (")
    assert reason in answer
    assert network.engine is None
    with pytest.raises(InputError) as caught:
        kernels.use(network, "fused", "bf16", CUDA)
    assert one_sentence(str(caught.value))


# ── parts that have no kernel ──


def cubed(a):
    return softmax_weights(a**3)


def halved(x):
    return 0.5 * x


class OwnJudgement(BlockCritic):
    def judge(self, x):
        return 1 - super().judge(x)


class OwnVectorJudgement(VectorCritic):
    def judge(self, x):
        return 1 - super().judge(x)


class OwnFitness(nn.Module):
    def forward(self, c):
        return c.float().mean((2, 3, 4)).sigmoid()


def with_weighting(network):
    for router in network.routers:
        router.weighting = cubed


def with_own_critics(network):
    for router in network.routers:
        own = OwnJudgement if isinstance(router.critic, BlockCritic) else OwnVectorJudgement
        router.critic.__class__ = own


def with_own_fitness(network):
    for router in network.routers[:-1]:
        router.critic = OwnFitness()


def with_hook(network):
    network.routers[0].critic.register_forward_hook(lambda module, given, answer: 1 - answer)


def with_replaced_method(network):
    critic = network.routers[0].critic
    own = critic.judge
    critic.judge = lambda x: 1 - own(x)


ROUTED_BY_PYTORCH = [with_weighting, with_own_critics, with_own_fitness, with_hook, with_replaced_method]


def with_nonlinearity(network):
    for blocks in network.capsules:
        blocks.trans.nonlinearity = halved


def with_epsilon(network):
    network.capsules[0].trans.norm.eps = 1e-3


def with_own_shortcut(network):
    first = network.capsules[0].dense
    first.shortcut = nn.Sequential(first.shortcut)


COMPUTED_BY_PYTORCH = [with_nonlinearity, with_epsilon, with_own_shortcut]


@pytest.mark.parametrize("change", ROUTED_BY_PYTORCH)
def test_routing_without_a_kernel_is_computed_by_its_own_modules(change, emulator):
    """What trains is the part that was put in: outputs and gradients are the changed network's, not the paper's."""
    torch.manual_seed(3)
    quiet = RoutingConfig(noise_share=0.0, dropout=0.0)
    network = WCapsNet(replace(SMALL, routing=quiet, critic_dropout=0.0, projection_dropout=0.0))
    paper, plain = copy.deepcopy(network), copy.deepcopy(network)
    change(network)
    change(plain)
    network.engine, paper.engine = Engine(network), Engine(paper)
    assert "routing in PyTorch" in network.engine.description
    assert paper.engine.description == "fused kernels"
    images = torch.randn(4, 3, 8, 8)
    torch.set_autocast_enabled("cuda", True)
    try:
        with bf16():
            ours, expected, other = network(images), plain(images), paper(images)
    finally:
        torch.set_autocast_enabled("cuda", False)
    for one, two, three in zip(ours.routings, expected.routings, other.routings, strict=True):
        assert error(one.weights, two.weights) < 0.02
        if not torch.allclose(two.weights, three.weights, atol=0.02):
            assert error(one.weights, two.weights) < 0.3 * error(three.weights, two.weights)
    ours.logits.sum().backward()
    expected.logits.sum().backward()
    for (name, p), q in zip(network.named_parameters(), plain.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name


@pytest.mark.parametrize("change", COMPUTED_BY_PYTORCH)
def test_blocks_without_a_kernel_leave_the_network_to_pytorch(change, a_card):
    network = WCapsNet(SMALL)
    change(network)
    answer = kernels.use(network, "auto", "bf16", CUDA)
    assert answer.startswith("plain PyTorch (")
    assert network.engine is None


def test_a_subclass_of_the_network_is_left_to_pytorch(a_card):
    class Own(WCapsNet):
        pass

    assert kernels.use(Own(SMALL), "auto", "bf16", CUDA) == "plain PyTorch (no kernel for Own)"


def test_every_registered_part_has_a_kernel_or_is_known_to_have_none():
    assert set(WEIGHTINGS.values()) == set(NORMALIZED)
    assert set(NONLINEARITIES.values()) == set(SQUASHED)
    for fitness in FITNESSES:
        network = WCapsNet(replace(SMALL, routing=RoutingConfig(fitness=fitness)))
        assert unsupported_routing(network) is None


def test_a_loss_and_an_augmentation_of_ones_own_are_used_with_the_kernels(emulator):
    """Step bypasses neither: the fused objective and the fused batch stand in for the paper's alone."""
    network = WCapsNet(SMALL)
    network.engine = Engine(network)
    experiment = Experiment("own", model=SMALL, training=TrainingConfig(batch_size=4, precision="bf16"))
    split = Split(torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8), torch.randint(0, 10, (8,)))
    data = DeviceSplit(split, (0.5,) * 3, (0.25,) * 3, CPU)
    seen = []

    def losses(network, images, labels, config):
        terms, logits = wcapsnet_losses(network, images, labels, config)
        return terms._replace(total=terms.total * 0 + 7), logits

    def augmentation(images, **given):
        seen.append(given)
        return images * 0

    optimizer = torch.optim.SGD(network.parameters(), lr=torch.tensor(0.1))
    step = Step(experiment, network, optimizer, data, losses, augmentation)
    step(torch.arange(4))
    assert seen == [{"mirroring": experiment.data.mirror, "shifting": experiment.data.shift}]
    assert float(step.sums[0]) == 7


# ── what is launched ──


class Recorder:
    """A backend that only writes down."""

    def __init__(self):
        self.launches = []

    def compile(self, file, kernel, defines):
        return file, kernel, dict(define.removeprefix("-D").split("=") for define in defines)

    def launch(self, function, grid, threads, shared, arguments):
        self.launches.append((*function, grid, threads, shared))


@pytest.fixture
def recorder(monkeypatch):
    backend = Recorder()
    monkeypatch.setattr(compiling, "backend", backend, raising=False)
    torch.set_autocast_enabled("cuda", True)
    yield backend
    torch.set_autocast_enabled("cuda", False)


def test_a_backend_never_gets_what_another_one_compiled(monkeypatch):
    class Own(Recorder):
        def compile(self, file, kernel, defines):
            return f"compiled by {number}"

    monkeypatch.setattr(compiling, "backend", None, raising=False)
    for number in range(50):
        compiling.backend = None  # the one before is gone, and the next may get its place in memory
        compiling.backend = Own()
        assert compiling.function(compiling.Kernel("spectral.cu", "spectral")) == f"compiled by {number}"


MNIST = WCapsNetConfig(channels=1, height=28, width=28)
LARGE = WCapsNetConfig(height=96, width=128, levels=(Level(64, 8, 16, 2), *WCapsNetConfig().levels[1:]))


@pytest.mark.parametrize(
    ("m", "config"),
    [
        (64, WCapsNetConfig()),
        (2, WCapsNetConfig(classes=100, levels=CIFAR100_LEVELS)),
        (300, MNIST),
        (5, LARGE),
        (700, SMALL),
    ],
    ids=["CIFAR-10", "CIFAR-100", "MNIST", "large", "small"],
)
def test_every_launch_is_one_that_a_card_takes(recorder, m, config):
    network = WCapsNet(config)
    network.engine = Engine(network)
    images = torch.empty(m, config.channels, config.height, config.width)
    with bf16():
        output = network(images)
    labels = torch.zeros(m, dtype=torch.int64)
    terms = kernels.objective(output, images, labels, ObjectiveConfig(), config.classes)
    terms.total.backward()
    network.eval()
    with torch.no_grad(), bf16():
        network(images)
    assert len(recorder.launches) > 50
    for file, kernel, defines, grid, threads, shared in recorder.launches:
        said = f"{file} {kernel} {defines} {grid} {threads} {shared}"
        assert 32 <= threads <= 1024, said
        assert threads % 32 == 0, said
        assert 0 <= shared <= layout.LARGEST_SHARED, said
        assert 1 <= grid[0] < 2**31, said
        assert all(1 <= size < 2**16 for size in grid[1:]), said
        if "THREADS" in defines:
            assert int(defines["THREADS"]) == threads, said
            assert int(defines["BLOCKS"]) * threads <= 2048, said


def test_arguments_fit_what_a_launch_can_pass():
    for file in SOURCES:
        for name, structure in structures(file).items():
            assert ctypes.sizeof(structure) <= 4096, (file, name)


# ── structures ──


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to say where the fields of a struct lie")
def test_structures_lie_in_memory_as_the_compiler_has_them(tmp_path):
    program = [
        "#include <cstddef>",
        "#include <cstdio>",
        "typedef unsigned short bf16;",
        "struct uint2 { unsigned x, y; };",
    ]
    expected, main = [], []
    for index, file in enumerate(SOURCES):
        text = compiling.source(file)
        program += [f"namespace n{index} {{"]
        for line in text.splitlines():
            if line.startswith("#define") and line.split()[-1].isdigit() and len(line.split()) == 3:
                program += [f"#undef {line.split()[1]}", line]
        for name, structure in structures(file).items():
            if name in ("Norm", "Spot"):  # never leave the device
                continue
            start = text.index(f"struct {name} {{")
            program.append(text[start : text.index("};", start) + 2])
            main.append(f'printf("%zu\\n", sizeof(n{index}::{name}));')
            expected.append((file, name, ctypes.sizeof(structure)))
            for field, *_ in structure._fields_:
                main.append(f'printf("%zu\\n", offsetof(n{index}::{name}, {field}));')
                expected.append((file, f"{name}.{field}", getattr(structure, field).offset))
        program.append("}")
    source = tmp_path / "sizes.cpp"
    source.write_text("\n".join([*program, "int main() {", *main, "}"]), encoding="utf-8")
    subprocess.run(["g++", "-w", str(source), "-o", str(tmp_path / "sizes")], check=True)
    said = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout.split()
    assert len(said) == len(expected) > 100
    assert [(file, name, int(size)) for (file, name, _), size in zip(expected, said, strict=True)] == expected


def test_an_argument_that_a_structure_does_not_have_is_refused():
    with pytest.raises(TypeError, match="no colour"):
        layout.build(structures("nesterov.cu")["Parameter"], colour=1)


# ── tilings ──


def cover(tile):
    """How often every position of every image is worked on, as `locate` in tiles.cuh has it."""
    seen = torch.zeros(tile.images, tile.height, tile.width, dtype=torch.int64)
    log = min(3, (tile.width - 1).bit_length())
    groups = tile.rows // tile.rows_a_warp
    for block in range(tile.blocks):
        image0, row0 = block // tile.tiles * tile.per_block, block % tile.tiles * tile.rows
        for unit in range(2 * tile.warps):
            for place in range(8):
                x = (unit % tile.strips << 3) + (place & ((1 << log) - 1))
                row = row0 + unit // tile.strips % groups * tile.rows_a_warp
                image = image0 + (unit // tile.strips // groups << (3 - log)) + (place >> log)
                if unit < tile.units and x < tile.width and image < tile.images:
                    for y in range(row, min(row + tile.rows_a_warp, tile.height)):
                        seen[image, y, x] += 1
    return seen


@pytest.mark.parametrize("multiprocessors", [132, 1])
@pytest.mark.parametrize(
    ("images", "height", "width", "taps", "bytes_a_position"),
    [
        (3, 1, 1, 1, 48), (9, 1, 2, 3, 48), (5, 3, 3, 3, 176), (7, 5, 4, 2, 48), (2, 7, 5, 3, 48), (3, 14, 14, 3, 240),
        (2, 16, 16, 3, 144), (1, 17, 18, 3, 80), (2, 33, 9, 2, 336), (1, 5, 128, 3, 144), (3, 11, 24, 1, 1040),
        (70, 2, 2, 1, 48), (1, 40, 64, 3, 400),
    ],
)  # fmt: skip
def test_a_tiling_covers_every_position_once_and_fits(
    monkeypatch, multiprocessors, images, height, width, taps, bytes_a_position
):
    monkeypatch.setattr(layout, "MULTIPROCESSORS", multiprocessors)
    for shift in {False, taps == 3 and width <= 16}:
        for others in (1, 16):
            tile = tiling(images, height, width, taps, others, bytes_a_position, shift=shift)
            assert 1 <= tile.warps <= 8
            assert tile.positions * bytes_a_position <= layout.LARGEST_SHARED
            assert tile.rows % tile.rows_a_warp == 0
            assert bool((cover(tile) == 1).all())


@pytest.mark.parametrize("images", [1, 64, 4096])
def test_a_map_that_fits_in_small_batches_fits_in_large_ones(images):
    assert tiling(images, 64, 64, 3, 16, 320).rows >= 1
    with pytest.raises(Unavailable):
        tiling(images, 8, 136, 3, 16, 48)


# ── what is kept on disk ──


class Nvrtc:
    """As much of NVRTC as is called; what it compiles is the source itself."""

    def __init__(self, broken=False):
        self.compiled, self.broken = 0, broken

    def nvrtcVersion(self, major, minor):
        major._obj.value, minor._obj.value = 12, 4

    def nvrtcCreateProgram(self, program, text, name, *headers):
        self.text = text
        return 0

    def nvrtcCompileProgram(self, program, count, flags):
        self.compiled += 1
        self.flags = [flags[i].decode() for i in range(count)]
        return int(self.broken)

    def nvrtcGetProgramLogSize(self, program, size):
        size._obj.value = 9

    def nvrtcGetProgramLog(self, program, log):
        log.value = b"line 1"

    def nvrtcGetCUBINSize(self, program, size):
        size._obj.value = len(self.text)

    def nvrtcGetCUBIN(self, program, image):
        image.raw = self.text

    def nvrtcDestroyProgram(self, program):
        self.destroyed = True


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))

    def make(**how):
        backend = Cuda.__new__(Cuda)
        backend.nvrtc = Nvrtc(**how)
        return backend

    return make


def test_what_was_compiled_once_is_read_from_disk(cuda, tmp_path):
    first, second = cuda(), cuda()
    image = first.binary("nesterov.cu", ("-DA=1",))
    assert first.nvrtc.compiled == 1
    assert first.nvrtc.destroyed
    assert "--gpu-architecture=sm_90" in first.nvrtc.flags
    assert "-DA=1" in first.nvrtc.flags
    assert second.binary("nesterov.cu", ("-DA=1",)) == image
    assert second.nvrtc.compiled == 0
    second.binary("nesterov.cu", ("-DA=2",))
    second.binary("images.cu", ("-DA=1",))
    assert second.nvrtc.compiled == 2
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 3


def test_another_card_or_compiler_or_source_is_compiled_anew(cuda, monkeypatch, tmp_path):
    backend = cuda()
    backend.binary("nesterov.cu", ())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 6))
    backend.binary("nesterov.cu", ())
    monkeypatch.setattr(Nvrtc, "nvrtcVersion", lambda self, major, minor: None)
    backend.binary("nesterov.cu", ())
    monkeypatch.setattr(compiling, "source", lambda name: "// another")
    backend.binary("nesterov.cu", ())
    assert backend.nvrtc.compiled == 4


def test_a_cache_that_cannot_be_written_costs_time_only(cuda, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "file"))
    backend = cuda()
    assert backend.binary("nesterov.cu", ()) == backend.binary("nesterov.cu", ())
    assert backend.nvrtc.compiled == 2
    monkeypatch.setattr(compiling.cache, "directory", lambda: None)
    backend.binary("nesterov.cu", ())
    assert backend.nvrtc.compiled == 3


def test_a_source_that_does_not_compile_says_why(cuda, tmp_path):
    with pytest.raises(RuntimeError, match="line 1"):
        cuda(broken=True).binary("nesterov.cu", ())
    assert not list((tmp_path / "cache").rglob("*.cubin"))


def test_a_source_includes_each_file_once():
    text = compiling.source("pull.cu")
    assert text.count("struct View {") == 1
    assert '#include "' not in text
