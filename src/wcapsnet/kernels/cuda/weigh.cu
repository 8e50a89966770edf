// The gradient of a convolution's weights: dw[o][c][tap] = Σ_positions dy[p][o] · relu(norm(x))[p + tap][c].
// A block goes through many images of one capsule and keeps its sums in registers.
#include "tiles.cuh"

struct Weigh {
    Input in;
    Tile tile;
    View dy;
    int dy_chunks;
    float* dw;  // (n, out, channels of the layer, kernel, kernel)
    int out;
    int kernel;
    int pad;
    int groups;  // of images, dealt out to the blocks
    Divisor made_wide;  // dy in shared memory: whole strips, zeros where there is no dy
    Divisor made_rows;
    Divisor made_positions;
    int warps_a_block;  // for one pair of input chunks
};

KERNEL(512) weigh(ARGUMENTS(Weigh) a) {
    SHARED_MEMORY(memory);
    const int n = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Tile& t = a.tile;
    const int even = a.in.even.value, steps = even / 2, pitch = (even + 1) * 16, wide = t.wide.value;
    const int made_wide = a.made_wide.value, made_positions = a.made_positions.value;
    float* scale = (float*)memory;
    float* shift = scale + even * 8;
    char* made = (char*)(shift + even * 8);  // dy: [chunk][position]
    char* tile = made + made_positions * COLUMNS * 16;
    const int column_groups = (a.dy_chunks + COLUMNS - 1) / COLUMNS;
    const int column0 = blockIdx.z % column_groups * COLUMNS;

    if (a.in.norm) prepare_norm(a.in, n, scale, shift);

    // Which channels (pairs of chunks), which positions.
    const int together = blockDim.x / 32 / a.warps_a_block;
    const int block = blockIdx.z / column_groups * together + warp / a.warps_a_block, first_pair = warp % a.warps_a_block;
    const int pairs = (t.units + 1) / 2;
    float sum[TAPS * TAPS][COLUMNS][4] = {};

    for (int group = blockIdx.x; group < a.groups; group += gridDim.x) {
        const int image0 = divide(group, t.tiles) * t.per_block;
        const int row0 = (group - divide(group, t.tiles) * (int)t.tiles.value) * t.rows;
        __syncthreads();
        load_tile(a.in, t, image0, row0, n, pitch, tile, scale, shift);
        for (int i = threadIdx.x; i < made_positions * COLUMNS; i += blockDim.x) {
            int c = divide(i, a.made_positions), position = i - c * made_positions;
            int line = divide(position, a.made_wide), x = position - line * made_wide;
            int image = divide(line, a.made_rows), y = row0 + line - image * t.rows;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (column0 + c < a.dy_chunks && image0 + image < t.images && y < t.height && x < t.width)
                v = __ldg((const uint4*)(at(a.dy, column0 + c, image0 + image, n) + (y * t.width + x) * a.dy.position));
            *(uint4*)(made + i * 16) = v;
        }
        __syncthreads();
        if (block < steps)
            for (int pair = first_pair; pair < pairs; pair += a.warps_a_block) {
                // x: lanes name positions (the depth of this product) of the 8 channels lane>>3&1; dy likewise.
                Spot in = locate(t, pair * 2 + (lane >> 4), lane & 7, ROWS);
                Spot out = locate(t, pair * 2 + (lane >> 3 & 1), lane & 7, ROWS);
                const char* from = tile + place_in_tile(t, in) * pitch + (block * 2 + (lane >> 3 & 1)) * 16;
                // A filling place must count nothing: its dy is zero where the strip ends beyond the map, and for a
                // unit that is none at all the lane names a place that is not looked at below.
                const char* with = made + ((out.image * t.rows + out.row) * made_wide + out.x) * 16;
                const bool second = pair * 2 + 1 < t.units;
                unsigned d[ROWS][COLUMNS][2];
#pragma unroll
                for (int row = 0; row < ROWS; row++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        load_matrices<true>(d[row][c], with + (c * made_positions + row * made_wide) * 16);
                        if (!second) d[row][c][1] = 0;
                    }
#pragma unroll
                for (int line = 0; line < ROWS + TAPS - 1; line++)
#pragma unroll
                    for (int dx = 0; dx < TAPS; dx++) {
                        unsigned x[4];
                        load_matrices<true>(x, from + (line * wide + dx) * pitch);
#pragma unroll
                        for (int dy = 0; dy < TAPS; dy++) {
                            const int row = line - dy;
                            if (row < 0 || row >= ROWS) continue;
#pragma unroll
                            for (int c = 0; c < COLUMNS; c++)
                                multiply_add(sum[dy * TAPS + dx][c], x, d[row][c][0], d[row][c][1]);
                        }
                    }
            }
    }
    if (block >= steps) return;
#pragma unroll
    for (int tap = 0; tap < TAPS * TAPS; tap++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int q = block * 2 + i / 2, real = real_channel(a.in, q, lane / 4);
                int o = (column0 + c) * 8 + lane % 4 * 2 + i % 2;
                int place = q < a.in.split ? divide(q, a.in.before_chunks) : 0;
                int down = divide(place, a.in.across), right = place - down * (int)a.in.across.value;
                int ky = a.in.stride * (a.in.low + tap / TAPS) + down + a.pad;
                int kx = a.in.stride * (a.in.low + tap % TAPS) + right + a.pad;
                if (real < 0 || o >= a.out || ky < 0 || ky >= a.kernel || kx < 0 || kx >= a.kernel) continue;
                atomicAdd(a.dw + (((long long)n * a.out + o) * a.in.layer_channels + real) * a.kernel * a.kernel +
                              ky * a.kernel + kx, sum[tap][c][i]);
            }
}
