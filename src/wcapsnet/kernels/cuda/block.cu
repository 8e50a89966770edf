// A whole capsule block for evaluation: Dense Layers, CapsTrans and the vector non-linearity of one capsule of one image,
// all in shared memory. With running statistics no layer waits for other images.
//
// BEFORE chunks of channels come in (from patches of STRIDE×STRIDE positions), DEPTH layers add GROWN chunks each, and
// 8·VECTOR elements a vector go out.
#define SHIFT 1
#define TAPS 3
#define TILE_ROWS (((HEIGHT + ROWS - 1) / ROWS) * ROWS)
#define PER_BLOCK 1
#include "tiles.cuh"

#define LAYERS 16

struct Running {
    const float* gamma;
    const float* beta;
    const float* mean;
    const float* var;
    int channels;
};

struct Block {
    View x;
    bf16* c;  // (m, n, position, k)
    int capsules;
    int height;  // of x
    int width;
    int growth;
    Running norm[LAYERS];  // of the layers, then of CapsTrans
    const uint2* weights[LAYERS];  // the same, then of the shortcut
    Running shared;  // the norm that the level's capsules share
    float eps;
    int squash;
};

constexpr int PLACES = HEIGHT * WIDTH, CHUNKS = BEFORE + DEPTH * GROWN, EVEN = (CHUNKS + 1) / 2 * 2;
constexpr int RAW = (CHUNKS | 1) * 16, PITCH = (EVEN + 1) * 16;  // bytes of a position, before and after norm and ReLU
constexpr int PATCH = BEFORE * STRIDE * STRIDE, PATCH_EVEN = (PATCH + 1) / 2 * 2, PATCH_PITCH = (PATCH_EVEN + 1) * 16;
constexpr int PATCH_WIDE = WIDTH + 1, PATCH_HIGH = TILE_ROWS + 1;

// scale and shift of `chunks` chunks: `patches` of the first BEFORE, then what has grown; zeros fill the last pair.
device_function void running_norm(const Block& a, const Running& norm, int n, int patches, int chunks, float* scale, float* shift) {
    for (int i = threadIdx.x; i < (chunks + 1) / 2 * 16; i += blockDim.x) {
        int q = i / 8, real = -1;
        if (q < patches * BEFORE)
            real = q % BEFORE * 8 + i % 8;
        else if (q < chunks) {
            int w = (q - patches * BEFORE) % GROWN * 8 + i % 8;
            if (w < a.growth) real = BEFORE * 8 + (q - patches * BEFORE) / GROWN * a.growth + w;
        }
        const int place = n * norm.channels + real;
        const float s = real < 0 ? 0.f : norm.gamma[place] * rsqrt_of(norm.var[place] + a.eps);
        scale[i] = s;
        shift[i] = real < 0 ? 0.f : norm.beta[place] - norm.mean[place] * s;
    }
}

device_function uint4 activated(uint4 v, const float* scale, const float* shift) {
    float f[8];
    unpack(v, f);
#pragma unroll
    for (int e = 0; e < 8; e++) f[e] = f[e] * scale[e] + shift[e];
    return make_uint4(pack_positive(f[0], f[1]), pack_positive(f[2], f[3]), pack_positive(f[4], f[5]), pack_positive(f[6], f[7]));
}

KERNEL(THREADS, BLOCKS) block(ARGUMENTS(Block) a) {
    SHARED_MEMORY(memory);
    const int m = blockIdx.x, n = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char* raw = memory;  // [position][chunk]
    char* tile = raw + (PLACES * RAW + 127) / 128 * 128;
    constexpr int tile_bytes = HIGH * WIDE * PITCH, patch_bytes = STRIDE > 1 ? PATCH_HIGH * PATCH_WIDE * PATCH_PITCH : 0;
    float* scale = (float*)(tile + (tile_bytes > patch_bytes ? tile_bytes : patch_bytes));
    float* shift = scale + (EVEN > PATCH_EVEN ? EVEN : PATCH_EVEN) * 8;
    const bool busy = warp * 2 < UNITS;
    const Spot named = locate(warp * 2 + (lane >> 3 & 1), lane & 7);
    const Spot got[2] = {locate(warp * 2, lane / 4), locate(warp * 2 + 1, lane / 4)};

    auto keep = [&](int chunk, int row, int half, float low, float high) {
        if (got[half].inside && got[half].row + row < HEIGHT)
            *(unsigned*)(raw + ((got[half].row + row) * WIDTH + got[half].x) * RAW + chunk * 16 + lane % 4 * 4) = pack(low, high);
    };

    int first = 0;
#if STRIDE == 1
    for (int i = threadIdx.x; i < PLACES * BEFORE; i += blockDim.x) {
        const int q = i / PLACES, p = i % PLACES;
        copy_async(raw + p * RAW + q * 16, at(a.x, q, m, n) + p * a.x.position);
    }
#else
    // The patches with a border above and to the left, as they are: the shortcut reads them so.
    clear(tile, patch_bytes);
    running_norm(a, a.norm[0], n, STRIDE * STRIDE, PATCH, scale, shift);
    __syncthreads();
    auto each = [&](auto change) {
        for (int i = threadIdx.x; i < PLACES * PATCH; i += blockDim.x) {
            const int q = i / PLACES, p = i % PLACES, place = q / BEFORE;
            const int y = p / WIDTH * STRIDE + place / STRIDE, x = p % WIDTH * STRIDE + place % STRIDE;
            if (y < a.height && x < a.width)
                change(tile + ((p / WIDTH + 1) * PATCH_WIDE + p % WIDTH + 1) * PATCH_PITCH + q * 16, q, y * a.width + x);
        }
    };
    each([&](char* to, int q, int p) { copy_async(to, at(a.x, q % BEFORE, m, n) + p * a.x.position); });
    copies_done();
    __syncthreads();
    const char* patch = tile + (named.row * PATCH_WIDE + min(named.x, WIDTH - 1)) * PATCH_PITCH + (lane >> 4) * 16;
    if (busy) {
        const uint2* weights = a.weights[DEPTH + 1] + (long long)n * (PATCH_EVEN / 2) * BEFORE * 32 + lane;
#pragma unroll 1
        for (int row = 0; row < ROWS; row++) {
            float sum[BEFORE][4] = {};
#pragma unroll 1
            for (int step = 0; step < PATCH_EVEN / 2; step++) {
                unsigned x[4];
                load_matrices<false>(x, patch + ((row + 1) * PATCH_WIDE + 1) * PATCH_PITCH + step * 32);
#pragma unroll
                for (int c = 0; c < BEFORE; c++) {
                    const uint2 w = __ldg(weights + (step * BEFORE + c) * 32);
                    multiply_add(sum[c], x, w.x, w.y);
                }
            }
#pragma unroll
            for (int c = 0; c < BEFORE; c++)
#pragma unroll
                for (int half = 0; half < 2; half++) keep(c, row, half, sum[c][half * 2], sum[c][half * 2 + 1]);
        }
    }
    __syncthreads();
    each([&](char* to, int q, int) { *(uint4*)to = activated(*(uint4*)to, scale + q * 8, shift + q * 8); });
    __syncthreads();
    if (busy) {
        float sum[ROWS][GROWN][4] = {};
        const uint2* weights = a.weights[0] + (long long)n * (PATCH_EVEN / 2) * 4 * GROWN * 32 + lane;
#pragma unroll 1
        for (int step = 0; step < PATCH_EVEN / 2; step++, weights += 4 * GROWN * 32) {
            uint2 w[4][GROWN];
#pragma unroll
            for (int i = 0; i < 4 * GROWN; i++) w[i / GROWN][i % GROWN] = __ldg(weights + i * 32);
#pragma unroll
            for (int line = 0; line < ROWS + 1; line++)
#pragma unroll
                for (int dx = 0; dx < 2; dx++) {
                    unsigned x[4];
                    load_matrices<false>(x, patch + (line * PATCH_WIDE + dx) * PATCH_PITCH + step * 32);
#pragma unroll
                    for (int dy = 0; dy < 2; dy++)
                        if (line - dy >= 0 && line - dy < ROWS)
#pragma unroll
                            for (int c = 0; c < GROWN; c++) multiply_add(sum[line - dy][c], x, w[dy * 2 + dx][c].x, w[dy * 2 + dx][c].y);
                }
        }
#pragma unroll
        for (int i = 0; i < ROWS * GROWN * 2; i++) {
            const int row = i / 2 / GROWN, c = i / 2 % GROWN, half = i % 2;
            keep(BEFORE + c, row, half, sum[row][c][half * 2], sum[row][c][half * 2 + 1]);
        }
    }
    first = 1;
    __syncthreads();
#endif
    clear(tile, tile_bytes);
    copies_done();

    const char* origin = tile + place_in_tile(named) * PITCH + (lane >> 4) * 16;
#pragma unroll 1
    for (int layer = first; layer <= DEPTH; layer++) {
        const int chunks = BEFORE + layer * GROWN, steps = (chunks + 1) / 2;
        running_norm(a, a.norm[layer], n, 1, chunks, scale, shift);
        __syncthreads();
        for (int i = threadIdx.x; i < PLACES * chunks; i += blockDim.x) {
            const int q = i / PLACES, p = i % PLACES;
            *(uint4*)(tile + ((p / WIDTH + 1) * WIDE + p % WIDTH) * PITCH + q * 16) =
                activated(*(const uint4*)(raw + p * RAW + q * 16), scale + q * 8, shift + q * 8);
        }
        __syncthreads();
        if (layer == DEPTH) break;
        if (busy) {
            float parts[3][ROWS][GROWN][4] = {};
            const uint2* weights = a.weights[layer] + (long long)n * steps * 9 * GROWN * 32 + lane;
#pragma unroll 1
            for (int step = 0; step < steps; step++, weights += 9 * GROWN * 32) {
                uint2 w[9][GROWN];
#pragma unroll
                for (int i = 0; i < 9 * GROWN; i++) w[i / GROWN][i % GROWN] = __ldg(weights + i * 32);
#pragma unroll
                for (int line = 0; line < ROWS + 2; line++) {
                    unsigned x[4];
                    load_matrices<false>(x, origin + line * WIDE * PITCH + step * 32);
#pragma unroll
                    for (int dy = 0; dy < 3; dy++)
                        if (line - dy >= 0 && line - dy < ROWS)
#pragma unroll
                            for (int i = 0; i < 3 * GROWN; i++)
                                multiply_add(parts[i / GROWN][line - dy][i % GROWN], x, w[dy * 3 + i / GROWN][i % GROWN].x,
                                             w[dy * 3 + i / GROWN][i % GROWN].y);
                }
            }
#pragma unroll
            for (int row = 0; row < ROWS; row++)
#pragma unroll
                for (int c = 0; c < GROWN; c++) {
                    bring_together(parts[0][row][c], parts[1][row][c], parts[2][row][c]);
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        keep(BEFORE + layer * GROWN + c, row, half, parts[1][row][c][half * 2], parts[1][row][c][half * 2 + 1]);
                }
        }
        // The next layer's chunk that only fills a pair is still zero or holds what this layer's norm made of the last one.
        if ((chunks + GROWN) % 2)
            for (int p = threadIdx.x; p < PLACES; p += blockDim.x)
                *(uint4*)(tile + ((p / WIDTH + 1) * WIDE + p % WIDTH) * PITCH + (chunks + GROWN) * 16) = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }

    if (!busy) return;
    const uint2* weights = a.weights[DEPTH] + (long long)n * (EVEN / 2) * VECTOR * 32 + lane;
#pragma unroll 1
    for (int row = 0; row < ROWS; row++) {
        float y[VECTOR][4] = {};
#pragma unroll 1
        for (int step = 0; step < EVEN / 2; step++) {
            unsigned x[4];
            load_matrices<false>(x, origin + (row + 1) * WIDE * PITCH + step * 32);
#pragma unroll
            for (int c = 0; c < VECTOR; c++) {
                const uint2 w = __ldg(weights + (step * VECTOR + c) * 32);
                multiply_add(y[c], x, w.x, w.y);
            }
        }
        // Four lanes hold a vector: the shared norm, then tilt or squash.
        float largest[2] = {-3e38f, -3e38f}, sum[2] = {};
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int k = c * 8 + lane % 4 * 2 + i % 2;
                y[c][i] = (y[c][i] - a.shared.mean[k]) * rsqrt_of(a.shared.var[k] + a.eps) * a.shared.gamma[k] + a.shared.beta[k];
                largest[i / 2] = max(largest[i / 2], y[c][i]);
            }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            largest[half] = max(largest[half], shuffle_xor(largest[half], 1));
            largest[half] = max(largest[half], shuffle_xor(largest[half], 2));
        }
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i / 2] += a.squash ? y[c][i] * y[c][i] : __expf(y[c][i] - largest[i / 2]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += shuffle_xor(sum[half], 1);
            sum[half] += shuffle_xor(sum[half], 2);
            const float length = sqrtf(sum[half] + 1e-12f) / (1 + sum[half]);
            if (!got[half].inside || got[half].row + row >= HEIGHT) continue;
            bf16* to = a.c + (((long long)m * a.capsules + n) * PLACES + (got[half].row + row) * WIDTH + got[half].x) * VECTOR * 8 +
                       lane % 4 * 2;
#pragma unroll
            for (int c = 0; c < VECTOR; c++) {
                float out[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float value = y[c][half * 2 + i];
                    out[i] = value * (a.squash ? length : 0.5f * (1 + __expf(value - largest[half]) / sum[half]));
                }
                *(unsigned*)(to + c * 8) = pack(out[0], out[1]);
            }
        }
    }
}
