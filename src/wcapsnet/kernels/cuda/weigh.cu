// The gradient of a convolution's weights: dw[o][c][tap] = Σ_positions dy[p][o] · relu(norm(x))[p + tap][c].
// A block processes many images of one capsule, in STAGES buffers, and keeps its sums in registers. They are written in
// tensor-core order, so that summing them touches whole lines of memory (`gather` in prepare.cu reorders them).
#include "input.cuh"

struct Weigh {
    Input in;
    View dy;
    int dy_chunks;
    float* dw;  // [n][pair of chunks][chunk of output][tap][4][lane]
    int groups;  // of images, distributed over the blocks
    int dy_norm;  // 1: dy is normalised and goes through a ReLU first (if x and dy have exchanged roles)
    Statistics dy_statistics;
    const float* dy_gamma;
    const float* dy_beta;
    float dy_count;
    float dy_eps;
};

KERNEL(THREADS, BLOCKS) weigh(ARGUMENTS(Weigh) a) {
    SHARED_MEMORY(memory);
    const int n = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int steps = EVEN / 2, taps = TAPS * TAPS;
    // dy in shared memory: whole strips; with SHIFT it is dy that is shifted, so it has a border to the left and right.
    constexpr int border = SHIFT ? 1 : 0, made_wide = (STRIPS << STRIP_LOG) + 2 * border;
    constexpr int made_positions = PER_BLOCK * TILE_ROWS * made_wide;
    constexpr int tile_bytes = POSITIONS * PITCH, made_bytes = made_positions * COLUMNS * 16;
    constexpr int stage_bytes = tile_bytes + made_bytes;  // x, then dy: [chunk][position], zeros outside the map
    const int column_groups = (a.dy_chunks + COLUMNS - 1) / COLUMNS;
    const int column0 = blockIdx.z % column_groups * COLUMNS;

    // Which channels (pairs of chunks), which positions.
    const int together = blockDim.x / 32 / WARPS_A_PAIR;
    const int block = blockIdx.z / column_groups * together + warp / WARPS_A_PAIR;
    float sum[taps][COLUMNS][4] = {};
#if NORM
    Affine* affine = (Affine*)(memory + STAGES * stage_bytes);
    prepare_norm(a.in, n, affine);
    __syncthreads();
    const int channel = min(block, steps - 1) * 16 + lane / 4;
    const Affine low = one_of(affine[channel / 2], channel % 2), high = one_of(affine[channel / 2 + 4], channel % 2);
#endif

    auto fetch = [&](int group, int stage) {
        const int image0 = group / TILES * PER_BLOCK, row0 = group % TILES * TILE_ROWS;
        char *tile = memory + stage * stage_bytes, *made = tile + tile_bytes;
        if (group < (int)(blockIdx.x + STAGES * gridDim.x) || TILES > 1 || image0 + PER_BLOCK > a.in.images) {
            clear_tile(a.in, image0, row0, tile);
            clear(made, made_bytes);
            __syncthreads();
        }
        load_chunks(a.in, 0, a.in.chunks, image0, row0, n, tile);
        for (int job = warp; job < COLUMNS * PARTS; job += blockDim.x / 32) {
            const int part = job % PARTS, c = job / PARTS, position = (int)a.dy.position;
            if (column0 + c >= a.dy_chunks) continue;
            const int images = min(PER_BLOCK, a.in.images - image0), end = min(row0 + TILE_ROWS, HEIGHT);
            const bf16* from = at(a.dy, column0 + c, image0, n);
            char* to = made + (c * made_positions - row0 * made_wide + border) * 16;
            if (!a.dy_norm) {
                copy_part<TILE_ROWS * made_wide * 16, made_wide * 16, 16>(part, images, row0, end, WIDTH, from, a.dy.image,
                                                                        WIDTH * position, position, to);
                continue;
            }
            load_part<TILE_ROWS * made_wide * 16, made_wide * 16, 16>(
                part, images, row0, end, WIDTH, from, a.dy.image, WIDTH * position, position, to, [&](uint4& v, int, int, int) {
                    float f[8];
                    unpack(v, f);
#pragma unroll
                    for (int e = 0; e < 8; e++) {
                        const int channel = (column0 + c) * 8 + e;
                        float mean, rstd;
                        mean_and_rstd(a.dy_statistics, 0, channel, a.dy_count, a.dy_eps, mean, rstd);
                        const float scale_ = a.dy_gamma[channel] * rstd;
                        f[e] = max(f[e] * scale_ + a.dy_beta[channel] - mean * scale_, 0.f);
                    }
                    v = pack(f);
                });
        }
        copies_asked();
    };

    // While one tile is processed, the next one is loading.
    fetch(blockIdx.x, 0);
    for (int group = blockIdx.x, stage = 0; group < a.groups; group += gridDim.x) {
        const int row0 = group % TILES * TILE_ROWS, next = group + gridDim.x;
        if (STAGES > 1 && next < a.groups) {
            fetch(next, stage ^ 1);
            copies_done_but<1>();
        } else {
            copies_done();
        }
        __syncthreads();
        const char *tile = memory + stage * stage_bytes, *made = tile + tile_bytes;
#pragma unroll 1
        for (int pair = warp % WARPS_A_PAIR; block < steps && pair < (UNITS + 1) / 2; pair += WARPS_A_PAIR) {
            // Positions are the depth of this product. x: lanes address those of the 8 channels lane>>3&1; dy likewise.
            const Spot in = locate(pair * 2 + (lane >> 4), lane & 7), out = locate(pair * 2 + (lane >> 3 & 1), lane & 7);
            const char* from = tile + place_in_tile(in) * PITCH + (block * 2 + (lane >> 3 & 1)) * 16;
            const char* with = made + ((out.image * TILE_ROWS + out.row) * made_wide + out.x + 2 * border) * 16;
            constexpr int apart = SHIFT ? TAPS : 1;
            unsigned d[ROWS][apart][COLUMNS][2];
#pragma unroll
            for (int row = 0; row < ROWS; row++)
#pragma unroll
                for (int k = 0; k < apart; k++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        load_matrices<true>(d[row][k][c], with + (c * made_positions + row * made_wide - k) * 16);
                        if (UNITS % 2 && pair * 2 + 1 >= UNITS) d[row][k][c][1] = 0;  // there is no second unit
                    }
#pragma unroll
            for (int line = 0; line < ROWS + TAPS - 1; line++)
#pragma unroll
                for (int at_ = 0; at_ < (SHIFT ? 1 : TAPS); at_++) {
                    unsigned x[4];
                    load_matrices<true>(x, from + (line * WIDE + at_) * PITCH);
#if NORM
#pragma unroll
                    for (int unit = 0; unit < 2; unit++) {
                        x[unit * 2] = activated(low, x[unit * 2]);
                        x[unit * 2 + 1] = activated(high, x[unit * 2 + 1]);
                        constexpr bool rows_only = SHIFT && WIDE == WIDTH;
                        if ((TAPS == 1 && (STRIDE == 1 || DIVIDED)) || (rows_only && HEIGHT % ROWS == 0 && line + LOW >= 0 && line + LOW < ROWS)) continue;
                        // The lane holds two positions, side by side.
#pragma unroll
                        for (int k = 0; k < (rows_only ? 1 : 2); k++) {
                            const Spot spot = locate(pair * 2 + unit, lane % 4 * 2 + k);
                            const int y = row0 + spot.row + line + LOW, column = rows_only ? 0 : spot.x + (SHIFT ? 0 : at_ + LOW);
                            const unsigned others = rows_only ? 0u : k ? 0xffffu : 0xffff0000u;
                            const bool here = on_map(a.in, y, column, block * 2);
                            if (!here) x[unit * 2] &= others;
                            if (DIVIDED ? !here : !on_map(a.in, y, column, block * 2 + 1)) x[unit * 2 + 1] &= others;
                        }
                    }
#endif
#pragma unroll
                    for (int dy = 0; dy < TAPS; dy++)
#pragma unroll
                        for (int k = 0; k < apart; k++) {
                            const int row = line - dy, tap = dy * TAPS + (SHIFT ? k : at_);
                            if (row < 0 || row >= ROWS) continue;
#pragma unroll
                            for (int c = 0; c < COLUMNS; c++) multiply_add(sum[tap][c], x, d[row][k][c][0], d[row][k][c][1]);
                        }
                }
        }
        __syncthreads();
        if (STAGES > 1)
            stage ^= 1;
        else if (next < a.groups)
            fetch(next, 0);
    }
    // Warps that share channels sum up before they access memory.
    if (WARPS_A_PAIR > 1) {
        float* kept = (float*)memory + (warp / WARPS_A_PAIR * taps * COLUMNS * 4) * 32 + lane;
#pragma unroll 1
        for (int k = 1; k < WARPS_A_PAIR; k++) {
            __syncthreads();
            if (warp % WARPS_A_PAIR == k)
#pragma unroll
                for (int i = 0; i < taps * COLUMNS * 4; i++) kept[i * 32] = sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4];
            __syncthreads();
            if (warp % WARPS_A_PAIR == 0)
#pragma unroll
                for (int i = 0; i < taps * COLUMNS * 4; i++) sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4] += kept[i * 32];
        }
    }
    if (block >= steps || warp % WARPS_A_PAIR) return;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        if (column0 + c >= a.dy_chunks) break;
        float* dw = a.dw + (((long long)n * steps + block) * a.dy_chunks + column0 + c) * taps * 128 + lane;
#pragma unroll
        for (int tap = 0; tap < taps; tap++)
#pragma unroll
            for (int i = 0; i < 4; i++) atomicAdd(dw + (tap * 4 + i) * 32, sum[tap][c][i]);
    }
}
