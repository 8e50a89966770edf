// Weights in the order in which tensor cores take them, as bf16; and sums over a map for its statistics.
#include "tiles.cuh"

#define LAYERS 16

// w (n, out, channels, kernel, kernel), read as TAPS×TAPS taps on patches (see Input).
struct Weights {
    const float* w;
    unsigned* forward;  // [n][pair of chunks][tap][chunk of output][lane][2], or null
    unsigned* backward;  // [n][chunk][chunk of output, even for one tap][tap][lane], or null
    int out;
    int kernel;
    int pad;
    int taps;
    int low;
    int stride;
    int before;  // channels
    int growth;
    int channels;
    int before_chunks;
    int grown_chunks;
    int split;
    int chunks;
    int out_chunks;
};

struct Prepare {
    Weights layer[LAYERS];
    int capsules;
};

device_function float weight(const Weights& a, int n, int o, int q, int e, int dy, int dx) {
    int real, place = 0;
    if (q < a.split) {
        place = q / a.before_chunks;
        real = q % a.before_chunks * 8 + e;
    } else {
        int grown = (q - a.split) % a.grown_chunks * 8 + e;
        real = a.before + (q - a.split) / a.grown_chunks * a.growth + grown;
        if (grown >= a.growth) return 0;
    }
    int ky = a.stride * dy + place / a.stride + a.pad, kx = a.stride * dx + place % a.stride + a.pad;
    if (q >= a.chunks || o >= a.out || ky < 0 || ky >= a.kernel || kx < 0 || kx >= a.kernel) return 0;
    return a.w[(((long long)n * a.out + o) * a.channels + real) * a.kernel * a.kernel + ky * a.kernel + kx];
}

KERNEL(256) prepare(ARGUMENTS(Prepare) all) {
    const Weights& a = all.layer[blockIdx.y];
    const int taps = a.taps * a.taps, steps = (a.chunks + 1) / 2;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    if (a.forward)
        for (int i = first; i < all.capsules * steps * taps * a.out_chunks * 64; i += stride) {
            int half = i % 2, lane = i / 2 % 32, rest = i / 64;
            int o = rest % a.out_chunks * 8 + lane / 4, tap = rest / a.out_chunks % taps;
            int step = rest / a.out_chunks / taps % steps, n = rest / a.out_chunks / taps / steps;
            int q = step * 2 + half, e = lane % 4 * 2, dy = a.low + tap / a.taps, dx = a.low + tap % a.taps;
            a.forward[i] = pack(weight(a, n, o, q, e, dy, dx), weight(a, n, o, q, e + 1, dy, dx));
        }
    if (a.backward) {
        const int made = a.taps == 1 ? (a.out_chunks + 1) / 2 * 2 : a.out_chunks;
        for (int i = first; i < all.capsules * a.chunks * made * taps * 32; i += stride) {
            int lane = i % 32, rest = i / 32, tap = rest % taps;
            int o = rest / taps % made * 8 + lane % 4 * 2, q = rest / taps / made % a.chunks, n = rest / taps / made / a.chunks;
            // What a tap took from p + d it gives back to p from p − d: the other way round.
            int dy = a.low + a.taps - 1 - tap / a.taps, dx = a.low + a.taps - 1 - tap % a.taps;
            a.backward[i] = pack(weight(a, n, o, q, lane / 4, dy, dx), weight(a, n, o + 1, q, lane / 4, dy, dx));
        }
    }
}

// The shortcut's weights (n, c, c, s, s) for the way back: from all capsules' channels to the places of a patch.
struct PrepareShortcut {
    const float* w;
    unsigned* backward;  // as `forward` above: [pair of chunks of (n, c)][chunk of (place, c)][lane][2]
    int capsules;
    int channels;
    int stride;
};

KERNEL(256) prepare_shortcut(ARGUMENTS(PrepareShortcut) a) {
    const int chunks = a.channels / 8, in = a.capsules * chunks, steps = (in + 1) / 2, out = a.stride * a.stride * chunks;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < steps * out * 64; i += gridDim.x * blockDim.x) {
        int half = i % 2, lane = i / 2 % 32, column = i / 64 % out, q = i / 64 / out * 2 + half;
        int n = q / chunks, o = q % chunks * 8 + lane % 4 * 2;
        int place = column / chunks, c = column % chunks * 8 + lane / 4;
        float two[2] = {};
        if (q < in)
            for (int k = 0; k < 2; k++)
                two[k] = a.w[(((long long)n * a.channels + o + k) * a.channels + c) * a.stride * a.stride + place];
        a.backward[i] = pack(two[0], two[1]);
    }
}

// Σx and Σx² of every channel of (rows, 8·chunks).
struct Sums {
    const bf16* x;
    long long rows;
    int chunks;
    float* sum;
    float* square;
};

KERNEL(256) sums(ARGUMENTS(Sums) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [2][8·chunks]
    for (int i = threadIdx.x; i < a.chunks * 16; i += blockDim.x) kept[i] = 0;
    __syncthreads();
    const int per_block = blockDim.x / a.chunks, row = threadIdx.x / a.chunks, chunk = threadIdx.x % a.chunks;
    float sum[8] = {}, square[8] = {};
    if (row < per_block)
        for (long long r = (long long)blockIdx.x * per_block + row; r < a.rows; r += (long long)gridDim.x * per_block) {
            float x[8];
            unpack(__ldg((const uint4*)(a.x + (r * a.chunks + chunk) * 8)), x);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[e] += x[e];
                square[e] += x[e] * x[e];
            }
        }
    if (row < per_block)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            atomicAdd(kept + chunk * 8 + e, sum[e]);
            atomicAdd(kept + (a.chunks + chunk) * 8 + e, square[e]);
        }
    __syncthreads();
    for (int i = threadIdx.x; i < a.chunks * 16; i += blockDim.x)
        atomicAdd(i < a.chunks * 8 ? a.sum + i : a.square + i - a.chunks * 8, kept[i]);
}
