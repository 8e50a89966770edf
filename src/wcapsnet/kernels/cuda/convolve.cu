// y_n = relu(norm(x_n)) ∗ w_n for all capsules n: a convolution of TAPS×TAPS taps to 8·out_chunks channels.
// COLUMNS chunks of output are computed at once, ROWS rows per warp: an input row in registers is used for all rows
// of output it touches. OUT_STRIDE above 1: output chunks are the positions of patches
// of a larger map (a transposed convolution). EPILOGUE: what happens to y before it is written. CAPSULES that all read
// the same are computed one after the other from one tile.
#define AS_IT_IS 0
#define ACTIVATED 1  // dropout(relu(y + bias)), for critics
#define BIASED 3  // y + bias
#define NORMED 4  // backward through relu(norm(x)): γy where x passed; the sums are Σy and Σx̂y of that y, dβ and dγ
#define MASKED 2  // backward through ACTIVATED: zero where the activation was zero
#include "input.cuh"

struct Convolve {
    Input in;
    View out;
    const uint2* weights;  // [n][pair of chunks][tap][chunk of output][lane]
    int out_chunks;
    int out_height;
    int out_width;
    int out_place_chunks;  // chunks of one position of a patch
    const float* bias;
    int out_channels;
    float keep;  // 1 − the probability of dropout
    const long long* seed;
    int salt;
    View mask;  // the activation, or x for NORMED
    Statistics mask_statistics;
    const float* mask_gamma;
    const float* mask_beta;
    float mask_count;
    float mask_eps;
    int mask_before;  // chunks of x from before a block, filled up with zeros like those that its layers have grown
    int mask_channels;  // in these chunks
    int mask_grown;  // chunks a layer grows
    int mask_growth;  // channels
    int add;  // 1: what NORMED writes is added to
    float* out_sum;  // null: no statistics
    float* out_square;
    int out_capsule;
};

// The norm of a channel that a gradient passes.
struct Passed {
    float scale;
    float shift;
    float gamma;
    float mean;
    float rstd;
    int real;  // the channel without padding, -1 for padding
};

device_function Passed passed(const Convolve& a, int channel) {
    const int chunk = channel / 8, later = chunk - a.mask_before;
    int real = channel;
    if (later >= 0 && chunk < a.out_chunks) {
        const int w = later % a.mask_grown * 8 + channel % 8;
        real = w < a.mask_growth ? a.mask_channels + later / a.mask_grown * a.mask_growth + w : -1;
    } else if (channel >= a.mask_channels) {
        real = -1;
    }
    Passed p = {0, 0, 0, 0, 0, real};
    if (real < 0) return p;
    mean_and_rstd(a.mask_statistics, 0, channel, a.mask_count, a.mask_eps, p.mean, p.rstd);
    p.gamma = a.mask_gamma[real];
    p.scale = p.gamma * p.rstd;
    p.shift = a.mask_beta[real] - p.mean * p.scale;
    return p;
}

KERNEL(THREADS, BLOCKS) convolve(ARGUMENTS(Convolve) a) {
    SHARED_MEMORY(memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int image0 = blockIdx.x / TILES * PER_BLOCK, row0 = blockIdx.x % TILES * TILE_ROWS;
    const int column0 = blockIdx.z * COLUMNS, n0 = blockIdx.y * CAPSULES;
    constexpr int steps = EVEN / 2, taps = TAPS * TAPS;
    // Zero padding: in shared memory, or in registers where a norm would change it.
    constexpr bool all_inside = TAPS == 1 && (STRIDE == 1 || DIVIDED), zeros_in_memory = !all_inside && !NORM;
    char* tile = memory;
    Affine* affine = (Affine*)(tile + POSITIONS * PITCH);  // [capsule][pair of channels]
    float* sums = (float*)(affine + (NORM ? CAPSULES * EVEN * 4 : 0));  // [warp][Σy, Σy²][8·COLUMNS]
    Passed* norms = (Passed*)(sums + blockDim.x / 32 * 16 * COLUMNS);  // for NORMED: [8·COLUMNS]
    // Which row of a product a lane addresses for the tensor core, and which it receives.
    const bool busy = warp * 2 < UNITS;  // further warps only help with loading
    const Spot named = locate(warp * 2 + (lane >> 3 & 1), lane & 7);
    const Spot got[2] = {locate(warp * 2, lane / 4), locate(warp * 2 + 1, lane / 4)};

    if (zeros_in_memory) {
        clear_tile(a.in, image0, row0, tile);
        if (!SHIFT) __syncthreads();
    } else if (a.in.chunks < EVEN) {
        for (int i = threadIdx.x; i < POSITIONS; i += blockDim.x) *(uint4*)(tile + i * PITCH + (EVEN - 1) * 16) = make_uint4(0, 0, 0, 0);
    }
    load_chunks(a.in, 0, a.in.chunks, image0, row0, n0, tile);
#if NORM
    for (int i = 0; i < CAPSULES; i++) prepare_norm(a.in, n0 + i, affine + i * EVEN * 4);  // while the tile is loading
#endif
    if (EPILOGUE == NORMED)
        for (int i = threadIdx.x; i < 8 * COLUMNS; i += blockDim.x) norms[i] = passed(a, column0 * 8 + i);
    copies_done();
    __syncthreads();

#pragma unroll 1
    for (int n = n0; n < n0 + CAPSULES; n++) {

    constexpr int apart = SHIFT ? TAPS : 1;  // sums for the taps of a row, combined at the end
    float parts[apart][ROWS][COLUMNS][4] = {};
    if (busy) {
        const char* origin = tile + place_in_tile(named) * PITCH + (lane >> 4) * 16;
        const uint2* weights = a.weights + ((long long)n * steps * taps * a.out_chunks + column0) * 32 + lane;
        constexpr bool ahead = !SHIFT;  // only if the sums leave enough registers
        uint2 w[taps][COLUMNS], next[taps][COLUMNS];
        auto fetch = [&](uint2 (&to)[taps][COLUMNS], const uint2* from) {
#pragma unroll
            for (int tap = 0; tap < taps; tap++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    to[tap][c] = COLUMNS == 1 || column0 + c < a.out_chunks ? __ldg(from + (tap * a.out_chunks + c) * 32)
                                                                           : make_uint2(0, 0);
        };
        if (ahead) fetch(next, weights);
#pragma unroll 1
        for (int step = 0; step < steps; step++, origin += 32) {
            if (ahead)
#pragma unroll
                for (int i = 0; i < taps * COLUMNS; i++) w[i / COLUMNS][i % COLUMNS] = next[i / COLUMNS][i % COLUMNS];
            else
                fetch(w, weights);
            weights += taps * a.out_chunks * 32;
            if (ahead && step + 1 < steps) fetch(next, weights);  // while the tensor cores work on this step
#if NORM
            const Affine* own = affine + ((n - blockIdx.y * CAPSULES) * EVEN + step * 2) * 4 + lane % 4;
            const Affine low = own[0], high = own[4];
#endif
#pragma unroll
            for (int line = 0; line < ROWS + TAPS - 1; line++)
#pragma unroll
                for (int at_ = 0; at_ < (SHIFT ? 1 : TAPS); at_++) {
                    unsigned x[4];
                    load_matrices<false>(x, origin + (line * WIDE + at_) * PITCH);
#pragma unroll
                    for (int half = 0; half < 2; half++) {
#if NORM
                        x[half] = activated(low, x[half]);
                        x[2 + half] = activated(high, x[2 + half]);
#endif
                        if (all_inside || zeros_in_memory || (SHIFT && HEIGHT % ROWS == 0 && line + LOW >= 0 && line + LOW < ROWS)) continue;
                        const int y = row0 + got[half].row + line + LOW, column = SHIFT ? 0 : got[half].x + at_ + LOW;
                        const bool here = on_map(a.in, y, column, step * 2);
                        if (!here) x[half] = 0;
                        if (DIVIDED ? !here : !on_map(a.in, y, column, step * 2 + 1)) x[2 + half] = 0;
                    }
#pragma unroll
                    for (int dy = 0; dy < TAPS; dy++)
#pragma unroll
                        for (int k = 0; k < apart; k++) {
                            const int row = line - dy, tap = dy * TAPS + (SHIFT ? k : at_);
                            if (row >= 0 && row < ROWS)
#pragma unroll
                                for (int c = 0; c < COLUMNS; c++) multiply_add(parts[k][row][c], x, w[tap][c].x, w[tap][c].y);
                        }
                }
        }
    }
    float(&sum)[ROWS][COLUMNS][4] = parts[SHIFT ? 1 : 0];
    if (SHIFT)
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) bring_together(parts[0][row][c], sum[row][c], parts[apart - 1][row][c]);

    float total[COLUMNS][4] = {};  // Σy and Σy² of the lane's two channels
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Spot spot = got[half];
        if (!spot.inside || image0 + spot.image >= a.in.images) continue;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            if (COLUMNS > 1 && column0 + c >= a.out_chunks) continue;
            int chunk = column0 + c, down = 0, right = 0, across = WIDTH;
            if (OUT_STRIDE > 1) {
                int place = chunk / a.out_place_chunks;
                chunk -= place * a.out_place_chunks;
                down = place / OUT_STRIDE;
                right = place % OUT_STRIDE;
                across = a.out_width;
            }
            const int channel = chunk * 8 + lane % 4 * 2;
            const int first = ((row0 + spot.row) * OUT_STRIDE + down) * across + spot.x * OUT_STRIDE + right;
            bf16* out = at(a.out, chunk, image0 + spot.image, n) + lane % 4 * 2 + first * (int)a.out.position;
            const bf16* mask = EPILOGUE == MASKED || EPILOGUE == NORMED ? at(a.mask, chunk, image0 + spot.image, n) + lane % 4 * 2 +
                                                        first * (int)a.mask.position
                                                  : nullptr;
            Passed norm[2] = {};
            if (EPILOGUE == NORMED)
#pragma unroll
                for (int i = 0; i < 2; i++) norm[i] = norms[c * 8 + lane % 4 * 2 + i];
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (TILES * TILE_ROWS > HEIGHT && row0 + spot.row + row >= HEIGHT) continue;
                if (OUT_STRIDE > 1 && ((row0 + spot.row + row) * OUT_STRIDE + down >= a.out_height ||
                                       spot.x * OUT_STRIDE + right >= a.out_width))
                    continue;
                const int further = row * OUT_STRIDE * across;
                float y[2] = {sum[row][c][half * 2], sum[row][c][half * 2 + 1]};
                if (EPILOGUE == ACTIVATED) {
                    unsigned random = a.keep < 1 ? hashed(*a.seed, a.salt,
                                                          ((image0 + spot.image) * HEIGHT * WIDTH + first + further) * a.out_chunks * 4 +
                                                              chunk * 4 + lane % 4)
                                                 : 0xffffffffu;
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        bool kept = (random >> 16 * i & 0xffff) >= (unsigned)((1 - a.keep) * 65536 + 0.5f);
                        float b = channel + i < a.out_channels ? a.bias[channel + i] : 0.f;
                        y[i] = kept ? max(y[i] + b, 0.f) / a.keep : 0.f;
                    }
                }
                if (EPILOGUE == BIASED)
#pragma unroll
                    for (int i = 0; i < 2; i++) y[i] += channel + i < a.out_channels ? a.bias[channel + i] : 0.f;
                if (EPILOGUE == MASKED) {
                    unsigned open = *(const unsigned*)(mask + further * (int)a.mask.position);
                    y[0] = low_half(open) > 0 ? y[0] / a.keep : 0.f;
                    y[1] = high_half(open) > 0 ? y[1] / a.keep : 0.f;
                }
                if (EPILOGUE == NORMED) {
                    unsigned two = *(const unsigned*)(mask + further * (int)a.mask.position);
                    const float x[2] = {low_half(two), high_half(two)};
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        y[i] = x[i] * norm[i].scale + norm[i].shift > 0 ? y[i] : 0.f;
                        total[c][i] += y[i];
                        total[c][2 + i] += (x[i] - norm[i].mean) * norm[i].rstd * y[i];
                        y[i] *= norm[i].gamma;
                    }
                    if (a.add) {
                        const unsigned before = *(const unsigned*)(out + further * (int)a.out.position);
                        y[0] += low_half(before);
                        y[1] += high_half(before);
                    }
                }
                unsigned two = pack(y[0], y[1]);
                *(unsigned*)(out + further * (int)a.out.position) = two;
                if (EPILOGUE == NORMED) continue;
                float low = low_half(two), high = high_half(two);  // as the next layer will see them
                total[c][0] += low;
                total[c][1] += high;
                total[c][2] += low * low;
                total[c][3] += high * high;
            }
        }
    }
    if (!a.out_sum) continue;
    if (CAPSULES > 1) __syncthreads();  // some threads may still be summing the last capsule
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = total[c][i];
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2) x += shuffle_xor(x, distance);
            if (lane < 4) sums[warp * 16 * COLUMNS + (i / 2 * COLUMNS + c) * 8 + lane * 2 + i % 2] = x;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * COLUMNS; i += blockDim.x) {
        int square = i / (8 * COLUMNS), channel = column0 * 8 + i % (8 * COLUMNS);
        float x = 0;
        for (int k = 0; k < (int)blockDim.x / 32; k++) x += sums[k * 16 * COLUMNS + i];
        if (channel >= a.out_chunks * 8) continue;
        if (OUT_STRIDE > 1) channel %= a.out_place_chunks * 8;
        if (EPILOGUE == NORMED && (channel = norms[channel - column0 * 8].real) < 0) continue;
        atomicAdd((square ? a.out_square : a.out_sum) + n * a.out_capsule + channel, x);
    }
}
}
