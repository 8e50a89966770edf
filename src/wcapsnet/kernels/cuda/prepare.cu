// Weights in tensor-core order, as bf16; and sums over a map for its statistics.
#include "primitives.cuh"

#define LAYERS 24

// w (n, out, channels, kernel, kernel), read as TAPS×TAPS taps on patches (see Input).
struct Weights {
    const float* w;
    unsigned* forward;  // [n][pair of chunks][tap][chunk of output][lane][2], or null
    unsigned* backward;  // [n][chunk][chunk of output, even for one tap][tap][lane], or null
    unsigned* transposed;  // [pair of chunks of all capsules' output][tap][chunk][lane][2], or null
    const float* sigma;  // weights are divided by this, if not null
    float* dot;  // Σ dw∘w is added to this, if not null
    const float* sums;  // the gradient as `weigh` leaves it: [n][pair of chunks][chunk of output][tap][4][lane]
    float* dw;
    int capsules;
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
};

device_function float weight(const Weights& a, int n, int o, int q, int e, int dy, int dx) {
    int real, place = 0;
    if (q < a.split) {
        place = q / a.before_chunks;
        real = q % a.before_chunks * 8 + e;
        if (real >= (a.channels < a.before ? a.channels : a.before)) return 0;
    } else {
        int grown = (q - a.split) % a.grown_chunks * 8 + e;
        real = a.before + (q - a.split) / a.grown_chunks * a.growth + grown;
        if (grown >= a.growth) return 0;
    }
    int ky = a.stride * dy + place / a.stride + a.pad, kx = a.stride * dx + place % a.stride + a.pad;
    if (q >= a.chunks || o >= a.out || ky < 0 || ky >= a.kernel || kx < 0 || kx >= a.kernel) return 0;
    return a.w[(((long long)n * a.out + o) * a.channels + real) * a.kernel * a.kernel + ky * a.kernel + kx];
}

KERNEL(256, 2) prepare(ARGUMENTS(Prepare) all) {
    const Weights& a = all.layer[blockIdx.y];
    const int taps = a.taps * a.taps, steps = (a.chunks + 1) / 2;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    const float by = a.sigma ? 1 / max(*a.sigma, 1e-12f) : 1.f;
    if (a.forward)
        for (int i = first; i < a.capsules * steps * taps * a.out_chunks * 64; i += stride) {
            int half = i % 2, lane = i / 2 % 32, rest = i / 64;
            int o = rest % a.out_chunks * 8 + lane / 4, tap = rest / a.out_chunks % taps;
            int step = rest / a.out_chunks / taps % steps, n = rest / a.out_chunks / taps / steps;
            int q = step * 2 + half, e = lane % 4 * 2, dy = a.low + tap / a.taps, dx = a.low + tap % a.taps;
            a.forward[i] = pack(weight(a, n, o, q, e, dy, dx) * by, weight(a, n, o, q, e + 1, dy, dx) * by);
        }
    if (a.backward) {
        const int made = a.taps == 1 ? (a.out_chunks + 1) / 2 * 2 : a.out_chunks;
        for (int i = first; i < a.capsules * a.chunks * made * taps * 32; i += stride) {
            int lane = i % 32, rest = i / 32, tap = rest % taps;
            int o = rest / taps % made * 8 + lane % 4 * 2, q = rest / taps / made % a.chunks, n = rest / taps / made / a.chunks;
            // A tap that reads p + d in the forward pass reads p − d in the backward pass: reverse the taps.
            int dy = a.low + a.taps - 1 - tap / a.taps, dx = a.low + a.taps - 1 - tap % a.taps;
            a.backward[i] = pack(weight(a, n, o, q, lane / 4, dy, dx) * by, weight(a, n, o + 1, q, lane / 4, dy, dx) * by);
        }
    }
    if (a.transposed)
        for (int i = first; i < (a.capsules * a.out_chunks + 1) / 2 * taps * a.chunks * 64; i += stride) {
            int half = i % 2, lane = i / 2 % 32, q = i / 64 % a.chunks, tap = i / 64 / a.chunks % taps;
            int made = i / 64 / a.chunks / taps * 2 + half, n = made / a.out_chunks, o = made % a.out_chunks * 8 + lane % 4 * 2;
            int dy = a.low + a.taps - 1 - tap / a.taps, dx = a.low + a.taps - 1 - tap % a.taps;
            a.transposed[i] = n < a.capsules ? pack(weight(a, n, o, q, lane / 4, dy, dx) * by, weight(a, n, o + 1, q, lane / 4, dy, dx) * by) : 0;
        }
}

// The gradients of all weights, in the weights' own order.
KERNEL(256, 2) gather(ARGUMENTS(Prepare) all) {
    const Weights& a = all.layer[blockIdx.y];
    SHARED_MEMORY(memory);
    const int area = a.kernel * a.kernel, taps = a.taps * a.taps, steps = (a.chunks + 1) / 2;
    float dot = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.capsules * a.out * a.channels * area; i += gridDim.x * blockDim.x) {
        int kx = i % a.kernel - a.pad, ky = i / a.kernel % a.kernel - a.pad;
        int c = i / area % a.channels, o = i / area / a.channels % a.out, n = i / area / a.channels / a.out;
        int dy = ky < 0 ? -1 : ky / a.stride, dx = kx < 0 ? -1 : kx / a.stride;
        int q, e;
        if (c < a.before) {
            q = ((ky - dy * a.stride) * a.stride + kx - dx * a.stride) * a.before_chunks + c / 8;
            e = c % 8;
        } else {
            int w = (c - a.before) % a.growth;
            q = a.split + (c - a.before) / a.growth * a.grown_chunks + w / 8;
            e = w % 8;
        }
        int tap = (dy - a.low) * a.taps + dx - a.low;
        const bool used = dy >= a.low && dx >= a.low;  // otherwise a tap that only sees padding
        float value = !used ? 0.f : a.sums[(((((long long)n * steps + q / 2) * a.out_chunks + o / 8) * taps + tap) * 4 + q % 2 * 2 + o % 2) * 32 +
                         e * 4 + o % 8 / 2];
        a.dw[i] = value;
        if (a.dot) dot += value * a.w[i];
    }
    if (!a.dot) return;
    dot = over_block(dot, (float*)memory);
    if (threadIdx.x == 0 && dot != 0) atomicAdd(a.dot, dot);
}

// Σx and Σx² of every channel of (chunk, rows, 8).
struct Sums {
    const bf16* x;
    long long rows;
    int chunks;
    float* sum;
    float* square;
};

KERNEL(256, 2) sums(ARGUMENTS(Sums) a) {
    SHARED_MEMORY(memory);
    float* kept = (float*)memory;  // [row][2][8·chunks]
    const int per_block = blockDim.x / a.chunks, row = threadIdx.x / a.chunks, chunk = threadIdx.x % a.chunks;
    float sum[8] = {}, square[8] = {};
    if (row < per_block)
        for (long long r = (long long)blockIdx.x * per_block + row; r < a.rows; r += (long long)gridDim.x * per_block) {
            float x[8];
            unpack(__ldg((const uint4*)(a.x + (chunk * a.rows + r) * 8)), x);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[e] += x[e];
                square[e] += x[e] * x[e];
            }
        }
    if (row < per_block)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            kept[(row * 2 * a.chunks + chunk) * 8 + e] = sum[e];
            kept[((row * 2 + 1) * a.chunks + chunk) * 8 + e] = square[e];
        }
    __syncthreads();
    for (int i = threadIdx.x; i < a.chunks * 16; i += blockDim.x) {
        float total = 0;
        for (int r = 0; r < per_block; r++) total += kept[r * a.chunks * 16 + i];
        atomicAdd(i < a.chunks * 8 ? a.sum + i : a.square + i - a.chunks * 8, total);
    }
}
