// A whole capsule block for evaluation: Dense Layers, CapsTrans and the vector non-linearity of one capsule of one image,
// all in shared memory. With running statistics no layer waits for other images.
//
// BEFORE chunks of channels come in (from patches of STRIDE×STRIDE positions), DEPTH layers add GROWN chunks each, and
// vectors of 8·VECTOR elements go out. Norm and ReLU happen in registers, so the channels are stored once, unmodified.
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

constexpr int PLACES = HEIGHT * WIDTH, CHUNKS = BEFORE + DEPTH * GROWN;
constexpr int PITCH = (CHUNKS | 1) * 16;  // bytes of a position: odd, to avoid bank conflicts between rows
constexpr int PATCH = STRIDE * STRIDE;  // positions of a patch; one chunk of each is loaded at a time
constexpr int PATCH_PITCH = ((PATCH + 1) / 2 * 2 | 1) * 16;

// Where a layer's norm begins in the table of all of them, in chunks rounded up to pairs: the layers', then CapsTrans'.
device_function int norm_begins(int layer) {
    int begins = 0;
    for (int l = 0; l < layer; l++) begins += (BEFORE + l * GROWN + 1) / 2 * 2;
    return begins;
}

device_function Affine running_norm(const Running& norm, float eps, int n, int growth, int q, int chunks, int pair) {
    float gamma_r[2] = {}, mean[2] = {}, beta[2] = {};
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int e = pair * 2 + k, w = (q - BEFORE) % GROWN * 8 + e;
        const int real = q < BEFORE ? q * 8 + e : BEFORE * 8 + (q - BEFORE) / GROWN * growth + w, place = n * norm.channels + real;
        if (q >= chunks || (q >= BEFORE && w >= growth)) continue;
        gamma_r[k] = norm.gamma[place] * rsqrt_of(norm.var[place] + eps);
        mean[k] = norm.mean[place];
        beta[k] = norm.beta[place];
    }
    return affine_of(gamma_r, mean, beta);
}

KERNEL(THREADS, BLOCKS) block(ARGUMENTS(Block) a) {
    SHARED_MEMORY(memory);
    const int m = blockIdx.x, n = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int places = PLACES * PITCH + 16, patches = STRIDE > 1 ? PLACES * PATCH_PITCH : 0;
    char* raw = memory;  // [position][chunk], and one more chunk, read together with the last odd one
    Affine* affine = (Affine*)(memory + (places > patches ? places : patches));
    const bool busy = warp * 2 < UNITS;
    const Spot named = locate(warp * 2 + (lane >> 3 & 1), lane & 7);
    const Spot got[2] = {locate(warp * 2, lane / 4), locate(warp * 2 + 1, lane / 4)};

    auto keep = [&](int chunk, int row, int half, float low, float high) {
        if (got[half].inside && got[half].row + row < HEIGHT)
            *(unsigned*)(raw + ((got[half].row + row) * WIDTH + got[half].x) * PITCH + chunk * 16 + lane % 4 * 4) = pack(low, high);
    };
    // Channels not yet computed are read as halves of pairs: they must be finite.
    auto clear_grown = [&] {
        for (int i = threadIdx.x; i < PLACES * (CHUNKS - BEFORE); i += blockDim.x)
            *(uint4*)(raw + i % PLACES * PITCH + (BEFORE + i / PLACES) * 16) = make_uint4(0, 0, 0, 0);
        if (threadIdx.x == 0) *(uint4*)(raw + PLACES * PITCH) = make_uint4(0, 0, 0, 0);
    };

    for (int layer = 0, begins = 0; layer <= DEPTH; layer++) {
        const int chunks = BEFORE + layer * GROWN, even = (chunks + 1) / 2 * 2;
        // Threads are reassigned for each layer, so that all weights are fetched at once.
        for (int i = (threadIdx.x + blockDim.x - begins * 4 % blockDim.x) % blockDim.x; i < even * 4; i += blockDim.x)
            affine[begins * 4 + i] = running_norm(a.norm[layer], a.eps, n, a.growth, i / 4, chunks, i % 4);
        begins += even;
    }

    int first = 0;
#if STRIDE == 1
    for (int i = threadIdx.x; i < PLACES * BEFORE; i += blockDim.x) {
        const int q = i / PLACES, p = i % PLACES;
        copy_async(raw + p * PITCH + q * 16, at(a.x, q, m, n) + p * a.x.position);
    }
    clear_grown();
    copies_done();
#else
    // The first layer and the shortcut: chunk by chunk of x, all positions of its patches at once.
    float grown[ROWS][GROWN][4] = {}, base[ROWS][BEFORE][4] = {};
    // A lane's half of the fragment that the weights of a chunk are in.
    auto weights_of = [&](const uint2* weights, int chunk, int taps, int columns, int tap, int c) {
        constexpr int pairs = (PATCH * BEFORE + 1) / 2;
        return __ldg((const unsigned*)(weights + (((long long)n * pairs + chunk / 2) * taps * columns + tap * columns + c) * 32 + lane) +
                     chunk % 2);
    };
#pragma unroll 1
    for (int q = 0; q < BEFORE; q++) {
        __syncthreads();
        for (int i = threadIdx.x; i < PLACES * (PATCH + PATCH % 2); i += blockDim.x) {
            const int place = i / PLACES, p = i % PLACES, y = p / WIDTH * STRIDE + place / STRIDE, x = p % WIDTH * STRIDE + place % STRIDE;
            char* to = raw + p * PATCH_PITCH + place * 16;
            if (place < PATCH && y < a.height && x < a.width)
                copy_async(to, at(a.x, q, m, n) + (y * a.width + x) * a.x.position);
            else
                *(uint4*)to = make_uint4(0, 0, 0, 0);
        }
        copies_done();
        __syncthreads();
        if (!busy) continue;
        const Affine f = affine[q * 4 + lane % 4];
#pragma unroll 1
        for (int two = 0; two < PATCH; two += 2) {  // positions of a patch
            const int chunk = two * BEFORE + q, next = two + 1 < PATCH ? chunk + BEFORE : -1;
            unsigned to_base[BEFORE][2], to_grown[4][GROWN][2];
#pragma unroll
            for (int c = 0; c < BEFORE; c++) {
                to_base[c][0] = weights_of(a.weights[DEPTH + 1], chunk, 1, BEFORE, 0, c);
                to_base[c][1] = next < 0 ? 0 : weights_of(a.weights[DEPTH + 1], next, 1, BEFORE, 0, c);
            }
#pragma unroll
            for (int tap = 0; tap < 4; tap++)
#pragma unroll
                for (int c = 0; c < GROWN; c++) {
                    to_grown[tap][c][0] = weights_of(a.weights[0], chunk, 4, GROWN, tap, c);
                    to_grown[tap][c][1] = next < 0 ? 0 : weights_of(a.weights[0], next, 4, GROWN, tap, c);
                }
#pragma unroll
            for (int line = 0; line < ROWS + 1; line++)
#pragma unroll
                for (int dx = 0; dx < 2; dx++) {
                    // Positions outside the map are masked below; here they only must be valid addresses.
                    const int y = min(max(named.row + line - 1, 0), HEIGHT - 1), x = min(max(named.x + dx - 1, 0), WIDTH - 1);
                    unsigned v[4];
                    load_matrices<false>(v, raw + (y * WIDTH + x) * PATCH_PITCH + (two + (lane >> 4)) * 16);
                    if (line > 0 && dx == 1)
#pragma unroll
                        for (int c = 0; c < BEFORE; c++) multiply_add(base[line - 1][c], v, to_base[c][0], to_base[c][1]);
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int row = got[half].row + line - 1, column = got[half].x + dx - 1;
#pragma unroll
                        for (int k = 0; k < 2; k++) {
                            const int down = (two + k) / STRIDE, right = (two + k) % STRIDE;
                            const bool here = row >= 0 && column >= 0 && row * STRIDE + down < a.height && column * STRIDE + right < a.width;
                            v[2 * k + half] = here ? activated(f, v[2 * k + half]) : 0u;
                        }
                    }
#pragma unroll
                    for (int dy = 0; dy < 2; dy++)
                        if (line - dy >= 0 && line - dy < ROWS)
#pragma unroll
                            for (int c = 0; c < GROWN; c++)
                                multiply_add(grown[line - dy][c], v, to_grown[dy * 2 + dx][c][0], to_grown[dy * 2 + dx][c][1]);
                }
        }
    }
    __syncthreads();
    clear_grown();
    __syncthreads();
    if (busy)
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int c = 0; c < BEFORE; c++) keep(c, row, half, base[row][c][half * 2], base[row][c][half * 2 + 1]);
#pragma unroll
                for (int c = 0; c < GROWN; c++) keep(BEFORE + c, row, half, grown[row][c][half * 2], grown[row][c][half * 2 + 1]);
            }
    first = 1;
#endif
    __syncthreads();

    // Positions outside the map refer to a neighbour, to be masked or ignored.
    const char* origin = raw + min(named.x, WIDTH - 1) * PITCH + (lane >> 4) * 16;
    const Affine* own = affine + norm_begins(first) * 4 + lane % 4;
#pragma unroll 1
    for (int layer = first; layer < DEPTH; layer++) {
        const int steps = (BEFORE + layer * GROWN + 1) / 2;
        if (busy) {
            float parts[3][ROWS][GROWN][4] = {};
            const uint2* weights = a.weights[layer] + (long long)n * steps * 9 * GROWN * 32 + lane;
#pragma unroll 1
            for (int step = 0; step < steps; step++, weights += 9 * GROWN * 32) {
                uint2 w[9][GROWN];
#pragma unroll
                for (int i = 0; i < 9 * GROWN; i++) w[i / GROWN][i % GROWN] = __ldg(weights + i * 32);
                const Affine low = own[step * 8], high = own[step * 8 + 4];
#pragma unroll
                for (int line = 0; line < ROWS + 2; line++) {
                    unsigned x[4];
                    load_matrices<false>(x, origin + min(max(named.row + line - 1, 0), HEIGHT - 1) * WIDTH * PITCH + step * 32);
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        x[half] = activated(low, x[half]);
                        x[2 + half] = activated(high, x[2 + half]);
                        if (HEIGHT % ROWS == 0 && line > 0 && line <= ROWS) continue;
                        const int row = got[half].row + line - 1;
                        if (row < 0 || row >= HEIGHT) x[half] = x[2 + half] = 0;
                    }
#pragma unroll
                    for (int dy = 0; dy < 3; dy++)
                        if (line - dy >= 0 && line - dy < ROWS)
#pragma unroll
                            for (int i = 0; i < 3 * GROWN; i++)
                                multiply_add(parts[i / GROWN][line - dy][i % GROWN], x, w[dy * 3 + i / GROWN][i % GROWN].x,
                                             w[dy * 3 + i / GROWN][i % GROWN].y);
                }
            }
            // (Threads that still read the channels being written multiply them by zero.)
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
        own += steps * 8;
        __syncthreads();
    }

    if (!busy) return;
    const uint2* weights = a.weights[DEPTH] + (long long)n * ((CHUNKS + 1) / 2) * VECTOR * 32 + lane;
#pragma unroll 1
    for (int row = 0; row < ROWS; row++) {
        float y[VECTOR][4] = {};
#pragma unroll 1
        for (int step = 0; step < (CHUNKS + 1) / 2; step++) {
            const Affine low = own[step * 8], high = own[step * 8 + 4];
            unsigned x[4];
            load_matrices<false>(x, origin + min(named.row + row, HEIGHT - 1) * WIDTH * PITCH + step * 32);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                x[half] = activated(low, x[half]);
                x[2 + half] = activated(high, x[2 + half]);
            }
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
